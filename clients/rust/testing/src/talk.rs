//! The server's side of one ingest call, in the words of the contract.

use clag_client::proto::ingest_request::Frame as Asked;
use clag_client::proto::ingest_response::Frame;
use clag_client::proto::{
    AckLevel, Disposition, IngestAck, IngestBatch, IngestFinished, IngestOpen, IngestOpened, IngestRequest,
    IngestResponse, IngestResult, MemoryState,
};
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use crate::Talk;

/// What an `expect_…` found instead is this status, with which the call ends and the test fails.
fn unexpected(frame: Option<&Asked>) -> Status {
    Status::failed_precondition(format!("the script did not expect {frame:?}"))
}

/// One ingest call.
#[derive(Debug)]
pub struct IngestTalk {
    /// Metadata of the call.
    pub metadata: MetadataMap,
    requests: Streaming<IngestRequest>,
    responses: mpsc::Sender<Result<IngestResponse, Status>>,
}

#[allow(clippy::missing_errors_doc)] // each ends the call with what it met
impl IngestTalk {
    pub(crate) fn new(talk: Talk<Streaming<IngestRequest>, IngestResponse>) -> Self {
        let (metadata, _, requests) = talk.request.into_parts();
        Self { metadata, requests, responses: talk.responses }
    }

    /// The next frame of the client; `None` when it closed its side.
    pub async fn read(&mut self) -> Result<Option<Asked>, Status> {
        Ok(self.requests.message().await?.and_then(|request| request.frame))
    }

    /// Reads `open` and answers that the stream goes on at `next_seq` with a window.
    pub async fn open(&mut self, next_seq: u64, window_items: u32) -> Result<IngestOpen, Status> {
        match self.read().await? {
            Some(Asked::Open(open)) => {
                let opened = IngestOpened { next_seq, window_items, ..IngestOpened::default() };
                self.send(Frame::Opened(opened)).await?;
                Ok(open)
            }
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Reads a batch.
    pub async fn expect_batch(&mut self) -> Result<IngestBatch, Status> {
        match self.read().await? {
            Some(Asked::Batch(batch)) => Ok(batch),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Acknowledges as durable all items up to `through`, those from `from` on with a result each.
    pub async fn ack(&self, from: u64, through: u64, window_items: u32) -> Result<(), Status> {
        let created = |seq| IngestResult {
            seq,
            disposition: Disposition::Created.into(),
            level: AckLevel::Durable.into(),
            memory_id: format!("m-{seq}"),
            state: MemoryState::Stored.into(),
            ..IngestResult::default()
        };
        let ack = IngestAck {
            acked_through: through,
            durable_through: through,
            window_items,
            results: (from..=through).map(created).collect(),
            revision: None,
        };
        self.send(Frame::Ack(ack)).await
    }

    /// Acknowledges every batch until `finish` comes, and answers that. Returns the last sequence number.
    pub async fn take_all(&mut self, window_items: u32) -> Result<u64, Status> {
        loop {
            match self.read().await? {
                Some(Asked::Batch(batch)) => {
                    self.ack(batch.first_seq, last_of(&batch), window_items).await?;
                }
                Some(Asked::Finish(finish)) => {
                    self.finished(finish.last_seq).await?;
                    return Ok(finish.last_seq);
                }
                other => return Err(unexpected(other.as_ref())),
            }
        }
    }

    /// Answers `finish`.
    pub async fn finished(&self, created: u64) -> Result<(), Status> {
        self.send(Frame::Finished(IngestFinished { created, ..IngestFinished::default() })).await
    }

    /// Reads until the client is gone, whatever it sends.
    pub async fn until_gone(&mut self) {
        while let Ok(Some(_)) = self.read().await {}
        self.responses.closed().await;
    }

    async fn send(&self, frame: Frame) -> Result<(), Status> {
        let sent = self.responses.send(Ok(IngestResponse { frame: Some(frame) })).await;
        sent.map_err(|_| Status::cancelled("the client is gone"))
    }
}

/// The sequence number of a batch's last item.
#[must_use]
pub fn last_of(batch: &IngestBatch) -> u64 {
    batch.first_seq + batch.items.len() as u64 - 1
}
