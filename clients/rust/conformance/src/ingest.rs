//! The `ingest` command.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clag_client::proto::{AckLevel, IngestOpen, MemoryInput};
use clag_client::{Client, Ingestion};
use serde_json::{Value, json};
use tokio_stream::{Stream, StreamExt};

use crate::command::{Command, Generate};
use crate::reply::{Failure, decoded, disposition_of, event_of};
use crate::work::Work;

/// Streams the command's items in, and tells what becomes of them.
pub(crate) async fn ingest(client: &Client, work: &Arc<Work>) -> Result<Value, Failure> {
    let command = &work.command;
    let items: Box<dyn Iterator<Item = MemoryInput> + Send> = match &command.generate {
        Some(generate) => Box::new(generated(generate.clone())),
        None => Box::new(given(command)?.into_iter()),
    };
    let ingestion = client.ingest(opening(command)?, source(items, work.clone()));
    let Some(timeout) = command.timeout_ms else {
        return followed(ingestion, work).await;
    };
    match tokio::time::timeout(Duration::from_millis(timeout), followed(ingestion, work)).await {
        Ok(done) => done,
        Err(elapsed) => Err(Failure::Command("DEADLINE_EXCEEDED", elapsed.to_string())),
    }
}

async fn followed(mut ingestion: Ingestion, work: &Work) -> Result<Value, Failure> {
    if work.command.consume.as_deref() == Some("slow") {
        work.until_resumed().await;
    }
    let mut finals: BTreeMap<&str, u64> = BTreeMap::new();
    while let Some(outcome) = ingestion.try_next().await? {
        work.count_outcome();
        if outcome.is_final {
            *finals.entry(disposition_of(&outcome)).or_default() += 1;
        }
        if !work.command.quiet {
            work.event(&event_of(&outcome));
        }
    }
    Ok(json!({
        "final": finals.values().sum::<u64>(),
        "outcomes": finals,
        "resumed_at": ingestion.resumed_at(),
        "reconnects": ingestion.reconnects(),
        "taken": work.taken(),
    }))
}

fn opening(command: &Command) -> Result<IngestOpen, Failure> {
    let mut opening = IngestOpen::new(&command.namespace, &command.stream_id);
    if let Some(level) = &command.ack_level {
        let level = AckLevel::from_str_name(&format!("ACK_LEVEL_{level}"));
        opening.set_ack_level(level.ok_or_else(|| Failure::invalid("no such level of acknowledgement"))?);
    }
    Ok(opening)
}

/// Counts what is taken, and stops after as many items as the command says until it is resumed.
fn source(
    items: impl Iterator<Item = MemoryInput> + Send,
    work: Arc<Work>,
) -> impl Stream<Item = MemoryInput> + Send {
    let last_before_pause = work.command.pause_after;
    tokio_stream::iter((0_u64..).zip(items)).then(move |(before, item)| {
        let work = work.clone();
        async move {
            if last_before_pause == Some(before) {
                work.until_resumed().await;
            }
            work.count_taken();
            item
        }
    })
}

fn given(command: &Command) -> Result<Vec<MemoryInput>, Failure> {
    command.items.iter().map(|item| decoded(item)).collect()
}

fn generated(generate: Generate) -> impl Iterator<Item = MemoryInput> {
    (1..=generate.count).map(move |number| {
        let number = number.to_string();
        MemoryInput {
            text: generate.text.replace("{n}", &number),
            memory_id: generate.memory_id.replace("{n}", &number),
            session_id: generate.session_id.clone(),
            ..MemoryInput::default()
        }
    })
}
