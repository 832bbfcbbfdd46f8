//! What is kept, sent and awaited of a stream, without any input or output.
//!
//! Items are kept until the server says that they are durable, so that a new connection can send them again; the
//! server ignores what it already has.

use std::collections::{BTreeMap, VecDeque};

use prost::Message;
use tonic::Code;

use crate::error::Error;
use crate::outcome::Outcome;
use crate::proto::{AckLevel, IngestAck, IngestBatch, IngestOpened, IngestResult, MemoryInput};

/// Frames of 64 items cost the server 3 µs an item, single ones ten times that; larger ones gain nothing.
const MAX_FRAME_ITEMS: usize = 64;

const MAX_FRAME_BYTES: usize = 1024 * 1024;
const FRAME_OVERHEAD_BYTES: usize = 64;
const ITEM_OVERHEAD_BYTES: usize = 6; // tag and length

/// The positions of one stream and the items between them.
///
/// `durable <= next - 1 <= taken`, and `next - 1` is never beyond `acked + credit` once sent.
#[derive(Debug)]
pub(super) struct Window {
    wanted: AckLevel,
    /// Items after `durable`, sent or not.
    kept: VecDeque<MemoryInput>,
    /// Memory ids, as far as known, of sent items without a final outcome.
    awaited: BTreeMap<u64, String>,
    /// Items taken from the source.
    taken: u64,
    durable: u64,
    acked: u64,
    credit: u64,
    /// The item to send next on this connection.
    next: u64,
    frame_items: usize,
    frame_bytes: usize,
}

impl Window {
    pub(super) fn new(wanted: AckLevel) -> Self {
        Self {
            wanted: if wanted == AckLevel::Unspecified { AckLevel::Durable } else { wanted },
            kept: VecDeque::new(),
            awaited: BTreeMap::new(),
            taken: 0,
            durable: 0,
            acked: 0,
            credit: 0,
            next: 1,
            frame_items: MAX_FRAME_ITEMS,
            frame_bytes: MAX_FRAME_BYTES,
        }
    }

    /// Every item up to here is on the server's disk.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// The last item that was sent on this connection, or needs no sending.
    pub(super) fn last_sent(&self) -> u64 {
        self.next - 1
    }

    /// Begins a connection where the server says; `first` is whether it is the stream's first. Returns the outcomes
    /// of items whose further progress is not reported any more.
    ///
    /// # Errors
    ///
    /// `DATA_LOSS` if the server asks for an item that is not kept any more, or was never taken.
    pub(super) fn open(&mut self, opened: &IngestOpened, first: bool) -> Result<Vec<Outcome>, Error> {
        let through = opened.next_seq.saturating_sub(1);
        if !first && (through < self.durable || through > self.taken.max(self.durable)) {
            let next = opened.next_seq;
            let sentence = format!("the server asks for item {next}, which this stream cannot send (again)");
            return Err(Error::local(Code::DataLoss, sentence));
        }
        let further = self.awaited.split_off(&(through + 1));
        let lost = std::mem::replace(&mut self.awaited, further);
        self.advance(through, through);
        self.next = through + 1;
        self.credit = opened.window_items.into();
        self.frame_items = limited(MAX_FRAME_ITEMS, opened.max_batch_items);
        self.frame_bytes = limited(MAX_FRAME_BYTES, opened.max_batch_bytes).saturating_sub(FRAME_OVERHEAD_BYTES);
        Ok(lost.into_iter().map(|(seq, memory_id)| Outcome::lost(seq, memory_id)).collect())
    }

    /// Whether another item may be taken from the source: it could be sent, and the frame it would go in has room.
    pub(super) fn has_room(&self) -> bool {
        self.taken < self.acked + self.credit && self.unsent() < self.frame_items
    }

    /// Takes an item from the source; one that the server has from an earlier run is let go.
    pub(super) fn take(&mut self, item: MemoryInput) {
        self.taken += 1;
        if self.taken > self.durable {
            self.kept.push_back(item);
        }
    }

    /// The number that the next item of the source has.
    pub(super) fn next_taken(&self) -> u64 {
        self.taken + 1
    }

    /// Whether there is something to send that the credit allows.
    pub(super) fn has_frame(&self) -> bool {
        self.unsent() > 0 && self.next <= self.acked + self.credit
    }

    /// Whether everything that was taken is on the server's disk, in order after what it had.
    pub(super) fn is_drained(&self) -> bool {
        self.unsent() == 0 && self.durable + 1 >= self.next
    }

    /// Makes the next frame of what is there, within credit and limits; `has_frame` said that there is something.
    pub(super) fn frame(&mut self) -> IngestBatch {
        let credit = self.acked + self.credit + 1 - self.next;
        let most = self.frame_items.min(usize::try_from(credit).unwrap_or(usize::MAX));
        let first_seq = self.next;
        let mut items = Vec::with_capacity(most.min(self.unsent()));
        let mut bytes = 0;
        for item in self.kept.iter().skip(self.sent()).take(most) {
            bytes += item.encoded_len() + ITEM_OVERHEAD_BYTES;
            if bytes > self.frame_bytes && !items.is_empty() {
                break;
            }
            self.awaited.insert(self.next, item.memory_id.clone());
            self.next += 1;
            items.push(item.clone());
        }
        IngestBatch { first_seq, items }
    }

    /// Hears what became of an item.
    pub(super) fn report(&mut self, result: IngestResult) -> Outcome {
        let outcome = Outcome::reported(result, self.wanted);
        if outcome.is_final {
            self.awaited.remove(&outcome.seq);
        } else if let Some(memory_id) = self.awaited.get_mut(&outcome.seq) {
            memory_id.clone_from(&outcome.memory_id);
        }
        outcome
    }

    /// Hears how far the server has come and how much it takes now.
    pub(super) fn acknowledge(&mut self, ack: &IngestAck) {
        self.credit = ack.window_items.into();
        self.advance(ack.acked_through, ack.durable_through);
    }

    fn advance(&mut self, acked: u64, durable: u64) {
        let gone = durable.saturating_sub(self.durable);
        self.kept.drain(..self.kept.len().min(usize::try_from(gone).unwrap_or(usize::MAX)));
        self.durable = self.durable.max(durable);
        self.acked = self.acked.max(acked);
    }

    /// Number of kept items that were sent on this connection.
    fn sent(&self) -> usize {
        usize::try_from(self.last_sent().saturating_sub(self.durable)).unwrap_or(usize::MAX)
    }

    fn unsent(&self) -> usize {
        self.kept.len().saturating_sub(self.sent())
    }
}

/// Our own limit, or the server's where it is lower.
fn limited(ours: usize, servers: u32) -> usize {
    match usize::try_from(servers) {
        Ok(limit) if limit > 0 => ours.min(limit),
        _ => ours,
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
