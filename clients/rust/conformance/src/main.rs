//! The conformance runner: the line protocol of `tests/conformance/README.md` on standard input and output.

mod calls;
mod command;
mod generated;
mod ingest;
mod reply;
mod runner;
mod work;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use crate::command::Command;
use crate::reply::hello;
use crate::runner::Runner;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let (lines, written) = mpsc::unbounded_channel();
    let _ = lines.send(hello());
    let writer = tokio::spawn(write(written));
    let runner = Runner::new(lines);
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = input.next_line().await? {
        match serde_json::from_str::<Command>(&line) {
            Ok(command) => runner.hear(command),
            Err(error) => eprintln!("a line is no command: {error}"),
        }
    }
    writer.abort();
    std::process::exit(0) // the driver is gone: nothing that is at work is of use to anyone
}

async fn write(mut lines: mpsc::UnboundedReceiver<String>) -> std::io::Result<()> {
    let mut output = tokio::io::stdout();
    while let Some(line) = lines.recv().await {
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}
