//! A resumable stream of memories: the part that its owner holds.

mod connection;
mod run;
mod window;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tonic::Code;

use crate::connect::Transport;
use crate::error::Error;
use crate::ingestion::run::Run;
use crate::item::IntoItem;
use crate::outcome::Outcome;
use crate::proto::memory_service_client::MemoryServiceClient;
use crate::proto::{IngestFinished, IngestOpen};
use crate::retry::Outage;

/// Outcomes that wait for a slow consumer; when there are more, reading stops, with it the credit, and the source.
const QUEUED_OUTCOMES: usize = 4096;

/// A running ingestion: a [`Stream`] of outcomes that ends when every item has reached the level that was asked for.
///
/// It owns everything that a stream needs: it sends frames of up to 64 items, never more than the server's credit
/// window, and when the connection breaks it opens another one, finds the server's position and goes on. Nothing is
/// lost or doubled. The k-th item of the source has sequence number k. A consumer that reads slowly slows the source:
/// memory stays bounded by the window.
///
/// Dropping it cancels the stream: what was acknowledged stays, and the same `stream_id` resumes. After an error
/// nothing follows.
#[must_use = "dropping an ingestion cancels it"]
pub struct Ingestion {
    outcomes: mpsc::Receiver<Outcome>,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<Result<(), Error>>,
    ended: bool,
}

/// How far an ingestion has come.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) resumed_at: u64,
    pub(crate) reconnects: u64,
    pub(crate) durable_through: u64,
    pub(crate) totals: Option<IngestFinished>,
}

impl Ingestion {
    pub(crate) fn start<S>(
        stub: MemoryServiceClient<Transport>,
        mut opening: IngestOpen,
        items: S,
        outage: Outage,
    ) -> Self
    where
        S: Stream<Item: IntoItem> + Send + 'static,
    {
        if opening.stream_id.is_empty() {
            opening.stream_id = format!("{:032x}", fastrand::u128(..));
        }
        let (outcomes, received) = mpsc::channel(QUEUED_OUTCOMES);
        let begin = Progress { resumed_at: 1, reconnects: 0, durable_through: 0, totals: None };
        let (progress, seen) = watch::channel(begin);
        let run = Run::new(stub, opening, items, outage, outcomes, progress);
        Self { outcomes: received, progress: seen, task: tokio::spawn(run.until_finished()), ended: false }
    }

    /// The next outcome; `None` when every item has reached the level that was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the stream cannot be finished, [`Error::Source`] if the source failed.
    pub async fn try_next(&mut self) -> Result<Option<Outcome>, Error> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await.transpose()
    }

    /// Passes over the remaining outcomes and returns the server's counts of the whole stream.
    ///
    /// # Errors
    ///
    /// As [`try_next`](Self::try_next).
    pub async fn wait(&mut self) -> Result<IngestFinished, Error> {
        while self.try_next().await?.is_some() {}
        self.totals().ok_or_else(|| Error::local(Code::Cancelled, "the ingestion was ended before it was finished"))
    }

    /// The server's counts of the whole stream, once it is finished.
    #[must_use]
    pub fn totals(&self) -> Option<IngestFinished> {
        self.progress.borrow().totals.clone()
    }

    /// Sequence number of the first item that was sent, known after the first outcome; items before it were durable
    /// from an earlier run and have no outcomes.
    #[must_use]
    pub fn resumed_at(&self) -> u64 {
        self.progress.borrow().resumed_at
    }

    /// Connections opened after the first.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.progress.borrow().reconnects
    }

    /// Sequence number of the last item that is known to be on the server's disk, with all before it.
    #[must_use]
    pub fn durable_through(&self) -> u64 {
        self.progress.borrow().durable_through
    }
}

impl Stream for Ingestion {
    type Item = Result<Outcome, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(outcome) = ready!(self.outcomes.poll_recv(context)) {
            return Poll::Ready(Some(Ok(outcome)));
        }
        let end = ready!(Pin::new(&mut self.task).poll(context));
        self.ended = true;
        Poll::Ready(end.unwrap_or_else(|error| Err(stopped(error))).err().map(Err))
    }
}

impl Drop for Ingestion {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Ingestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ingestion").field("progress", &*self.progress.borrow()).finish_non_exhaustive()
    }
}

/// What became of a task that did not return: a panic of the caller's source goes on in the caller.
fn stopped(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Error::local(Code::Cancelled, "the runtime stopped the ingestion"),
    }
}
