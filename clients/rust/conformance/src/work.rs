//! One command that is at work, and what other commands may do to it.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::command::Command;
use crate::reply::line;

/// A command at work.
pub(crate) struct Work {
    pub(crate) command: Command,
    lines: mpsc::UnboundedSender<String>,
    cancelled: watch::Sender<bool>,
    resumed: watch::Sender<bool>,
    taken: AtomicU64,
    outcomes: AtomicU64,
}

impl Work {
    pub(crate) fn new(command: Command, lines: mpsc::UnboundedSender<String>) -> Self {
        Self {
            command,
            lines,
            cancelled: watch::Sender::new(false),
            resumed: watch::Sender::new(false),
            taken: AtomicU64::new(0),
            outcomes: AtomicU64::new(0),
        }
    }

    /// Writes an answer: `ok`, `error` or `event`.
    pub(crate) fn tell(&self, kind: &str, content: &Value) {
        // Nobody reads any more where this fails, and the process ends.
        let _ = self.lines.send(line(&json!({"id": self.command.id, kind: content})));
    }

    pub(crate) fn event(&self, content: &Value) {
        self.tell("event", content);
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub(crate) fn resume(&self) {
        self.resumed.send_replace(true);
    }

    pub(crate) async fn until_cancelled(&self) {
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    pub(crate) async fn until_resumed(&self) {
        let _ = self.resumed.subscribe().wait_for(|resumed| *resumed).await;
    }

    /// Counts an item that the client took from its source.
    pub(crate) fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_outcome(&self) {
        self.outcomes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn progress(&self) -> Value {
        json!({"taken": self.taken(), "outcomes": self.outcomes.load(Ordering::Relaxed)})
    }
}
