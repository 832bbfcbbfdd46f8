//! The task of an ingestion: connections, one after the other, until the stream is finished.

use std::pin::Pin;

use futures_core::Stream;
use tokio::sync::{mpsc, watch};
use tonic::Code;

use crate::connect::Transport;
use crate::error::Error;
use crate::ingestion::Progress;
use crate::ingestion::window::Window;
use crate::item::IntoItem;
use crate::outcome::Outcome;
use crate::proto::memory_service_client::MemoryServiceClient;
use crate::proto::{IngestOpen, IngestOpened, MemoryInput};
use crate::retry::Outage;

/// Everything that outlives one connection of an ingestion.
pub(super) struct Run<S> {
    pub(super) stub: MemoryServiceClient<Transport>,
    pub(super) opening: IngestOpen,
    pub(super) source: Source<S>,
    pub(super) window: Window,
    outage: Outage,
    outcomes: mpsc::Sender<Outcome>,
    progress: watch::Sender<Progress>,
    /// Whether the server has opened the stream; from then on one that goes away is looked for.
    opened: bool,
}

impl<S: Stream<Item: IntoItem>> Run<S> {
    pub(super) fn new(
        stub: MemoryServiceClient<Transport>,
        opening: IngestOpen,
        items: S,
        outage: Outage,
        outcomes: mpsc::Sender<Outcome>,
        progress: watch::Sender<Progress>,
    ) -> Self {
        let window = Window::new(opening.ack_level());
        let source = Source { items: Some(Box::pin(items)), failure: None };
        Self { stub, opening, source, window, outage, outcomes, progress, opened: false }
    }

    pub(super) async fn until_finished(mut self) -> Result<(), Error> {
        loop {
            let before = self.window.durable();
            match self.connection().await {
                Ok(totals) => {
                    self.progress.send_modify(|progress| progress.totals = Some(totals));
                    return Ok(());
                }
                Err(error) if !self.opened && error.retry_after().is_none() => return Err(error), // it was never there
                Err(error) => {
                    let forward = self.window.durable() > before;
                    self.outage.wait(error, forward).await?;
                    self.progress.send_modify(|progress| progress.reconnects += 1);
                }
            }
        }
    }

    /// Hears where the server wants to go on.
    pub(super) async fn hear_opened(&mut self, opened: &IngestOpened) -> Result<(), Error> {
        let first = !self.opened;
        let lost = self.window.open(opened, first)?;
        self.outage.connected();
        self.opened = true;
        self.progress.send_modify(|progress| {
            if first {
                progress.resumed_at = opened.next_seq;
            }
            progress.durable_through = self.window.durable();
        });
        for outcome in lost {
            self.tell(outcome).await?;
        }
        Ok(())
    }

    /// Hands an outcome to the consumer; waits while it has too many. (A shared borrow would ask `S` to be `Sync`.)
    pub(super) async fn tell(&mut self, outcome: Outcome) -> Result<(), Error> {
        let sent = self.outcomes.send(outcome).await;
        sent.map_err(|_| Error::local(Code::Cancelled, "nobody waits for outcomes any more"))
    }

    pub(super) fn tell_progress(&self) {
        self.progress.send_modify(|progress| progress.durable_through = self.window.durable());
    }
}

/// The caller's items, read once for the whole ingestion, whatever happens to connections.
pub(super) struct Source<S> {
    /// `None` when it has ended.
    items: Option<Pin<Box<S>>>,
    failure: Option<Error>,
}

impl<S: Stream<Item: IntoItem>> Source<S> {
    pub(super) fn has_ended(&self) -> bool {
        self.items.is_none()
    }

    /// The failure that ended it, to be told once what it gave before is stored.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Waits for the item that has the number `seq`; none at the end. Nothing is lost when this is dropped.
    pub(super) async fn next(&mut self, seq: u64) -> Option<MemoryInput> {
        let items = self.items.as_mut()?;
        match std::future::poll_fn(|context| items.as_mut().poll_next(context)).await.map(IntoItem::into_item) {
            Some(Ok(item)) => Some(item),
            Some(Err(source)) => {
                self.items = None;
                self.failure = Some(Error::Source { seq, source });
                None
            }
            None => {
                self.items = None;
                None
            }
        }
    }
}
