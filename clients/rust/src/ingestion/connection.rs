//! One connection of an ingestion: reading acknowledgements, taking items and sending frames, side by side.

use std::time::Duration;

use futures_core::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::error::Error;
use crate::ingestion::run::Run;
use crate::item::IntoItem;
use crate::proto::ingest_request::Frame as Sent;
use crate::proto::ingest_response::Frame as Received;
use crate::proto::{IngestAck, IngestFinish, IngestFinished, IngestRequest, IngestResponse};

/// How long the server may take to close a finished stream; without it, it would see a cancelled call.
const GOODBYE: Duration = Duration::from_secs(2);

impl<S: Stream<Item: IntoItem>> Run<S> {
    /// Works over one connection until the stream is finished.
    ///
    /// # Errors
    ///
    /// What broke it, or the failure of the source.
    pub(super) async fn connection(&mut self) -> Result<IngestFinished, Error> {
        // Room for one frame: what is not under way yet stays with us, where the credit is known.
        let (frames, requests) = mpsc::channel(1);
        let open = IngestRequest { frame: Some(Sent::Open(self.opening.clone())) };
        frames.try_send(open).map_err(|_| closed_early())?;
        let mut responses = self.stub.ingest(ReceiverStream::new(requests)).await?.into_inner();
        match next_frame(&mut responses).await? {
            Received::Opened(opened) => self.hear_opened(&opened).await?,
            _ => return Err(Error::local(Code::Internal, "the server did not answer open with opened")),
        }
        let totals = self.exchange(&mut responses, &frames).await?;
        drop(frames);
        let _ = tokio::time::timeout(GOODBYE, responses.message()).await;
        Ok(totals)
    }

    async fn exchange(
        &mut self,
        responses: &mut Streaming<IngestResponse>,
        frames: &mpsc::Sender<IngestRequest>,
    ) -> Result<IngestFinished, Error> {
        let mut sending = true; // until finish is sent, or nobody reads any more
        loop {
            // Sources that are always ready would otherwise never let other tasks run.
            tokio::task::coop::consume_budget().await;
            let finishing = self.source.has_ended() && self.window.is_drained();
            if finishing && let Some(failure) = self.source.take_failure() {
                return Err(failure);
            }
            tokio::select! {
                biased;
                frame = next_frame(responses) => match frame? {
                    Received::Ack(ack) => self.hear_ack(ack).await?,
                    Received::Finished(totals) => return Ok(totals),
                    Received::Opened(_) => {
                        return Err(Error::local(Code::Internal, "the server opened the stream twice"));
                    }
                },
                item = self.source.next(self.window.next_taken()), if !self.source.has_ended() && self.window.has_room() => {
                    if let Some(item) = item {
                        self.window.take(item);
                    }
                }
                permit = frames.reserve(), if sending && (self.window.has_frame() || finishing) => match permit {
                    Ok(permit) if finishing => {
                        let finish = IngestFinish { last_seq: self.window.last_sent() };
                        permit.send(IngestRequest { frame: Some(Sent::Finish(finish)) });
                        sending = false;
                    }
                    Ok(permit) => permit.send(IngestRequest { frame: Some(Sent::Batch(self.window.frame())) }),
                    Err(_) => sending = false, // the responses end too, and say why
                },
            }
        }
    }

    async fn hear_ack(&mut self, mut ack: IngestAck) -> Result<(), Error> {
        for result in std::mem::take(&mut ack.results) {
            let outcome = self.window.report(result);
            self.tell(outcome).await?;
        }
        self.window.acknowledge(&ack);
        self.tell_progress();
        Ok(())
    }
}

async fn next_frame(responses: &mut Streaming<IngestResponse>) -> Result<Received, Error> {
    let response = responses.message().await?.ok_or_else(closed_early)?;
    response
        .frame
        .ok_or_else(|| Error::local(Code::Internal, "the server sent a frame of a kind that is not known"))
}

fn closed_early() -> Error {
    Error::local(Code::Unavailable, "the server ended the stream before it was finished")
}
