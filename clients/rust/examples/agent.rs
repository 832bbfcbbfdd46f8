//! An agent that remembers: it streams in what it sees, asks its memory before it acts, and keeps what came of it.
//!
//! Run it against a server with `cargo run --example agent -- unix:/run/user/1000/clag/clag.sock`.

use clag_client::proto::{IngestOpen, MemoryInput, MemoryKind, RetrieveRequest};
use clag_client::{Client, Error};

const NAMESPACE: &str = "warehouse";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let target = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7077".into());
    let client = Client::builder(target).token(std::env::var("CLAG_TOKEN").unwrap_or_default()).connect()?;

    // What the robot saw this morning. Run it again: the stream has a name, and nothing is stored twice.
    let seen = ["Dock B3 is blocked by a pallet", "The pallet at B3 was moved to B7", "Dock B7 is being cleaned"];
    let seen =
        seen.map(|text| MemoryInput { session_id: "monday".into(), speaker: "robot-7".into(), ..text.into() });
    let opening = IngestOpen::new(NAMESPACE, "monday-morning");
    let stored = client.ingest(opening, tokio_stream::iter(seen)).wait().await?;
    println!("stored {} memories", stored.created);

    for question in ["where is the pallet?", "which dock can I use?"] {
        let request = RetrieveRequest { context_tokens: 256, ..RetrieveRequest::new(NAMESPACE, question) };
        let context = client.get_context(request).await?.context.unwrap_or_default();
        println!("\n{question}\n{}", context.text);

        let decision = act(question, &context.text);
        let mut action = MemoryInput { session_id: "monday".into(), speaker: "robot-7".into(), ..decision.into() };
        action.set_kind(MemoryKind::Action);
        let made = client.create_memory(NAMESPACE, action).await?;
        println!("-> remembered as {}", made.memory.unwrap_or_default().memory_id);
    }
    Ok(())
}

/// Where your language model goes.
fn act(question: &str, context: &str) -> String {
    format!("Asked \"{question}\", decided from {} lines of memory", context.lines().count())
}
