//! What became of the items of a stream.

use crate::proto::{AckLevel, Disposition, IngestResult, ItemError, MemoryState};

/// What became of an item, as far as it has come. An item may come again when it has come further.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Its number in the source, from 1.
    pub seq: u64,
    /// `Created`, `Duplicate` or `Rejected`; `Unspecified` for an item that is durable but whose progress was lost
    /// sight of with a connection.
    pub disposition: Disposition,
    /// The acknowledgement level that it has reached; `Unspecified` when rejected.
    pub level: AckLevel,
    /// Its memory; empty when rejected.
    pub memory_id: String,
    /// Its cluster; empty while it has none.
    pub cluster_id: String,
    /// Its state.
    pub state: MemoryState,
    /// Why it was rejected or quarantined.
    pub error: Option<ItemError>,
    /// Whether nothing more comes of it: it has reached the level that was asked for, or never will.
    pub is_final: bool,
}

impl Outcome {
    /// An outcome as the server reports it to a stream that asked for the level `wanted`.
    pub(crate) fn reported(result: IngestResult, wanted: AckLevel) -> Self {
        let (disposition, level, state) = (result.disposition(), result.level(), result.state());
        Self {
            seq: result.seq,
            disposition,
            level,
            memory_id: result.memory_id,
            cluster_id: result.cluster_id,
            state,
            error: result.error,
            is_final: disposition != Disposition::Created
                || level as i32 >= wanted as i32
                || state == MemoryState::Quarantined,
        }
    }

    /// The last outcome of an item that is durable and whose progress was lost sight of with a connection;
    /// `memory_id` is empty when its report was lost too.
    pub(crate) fn lost(seq: u64, memory_id: String) -> Self {
        Self {
            seq,
            disposition: Disposition::Unspecified,
            level: AckLevel::Durable,
            memory_id,
            cluster_id: String::new(),
            state: MemoryState::Unspecified,
            error: None,
            is_final: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(level: AckLevel, state: MemoryState) -> IngestResult {
        IngestResult {
            seq: 1,
            disposition: Disposition::Created.into(),
            level: level.into(),
            state: state.into(),
            ..IngestResult::default()
        }
    }

    #[test]
    fn an_item_is_final_at_the_level_that_was_asked_for_or_when_it_never_gets_there() {
        let is_final = |result| Outcome::reported(result, AckLevel::Organized).is_final;

        assert!(!is_final(created(AckLevel::Durable, MemoryState::Stored)));
        assert!(!is_final(created(AckLevel::Searchable, MemoryState::Embedded)));
        assert!(is_final(created(AckLevel::Organized, MemoryState::Evolved)));
        assert!(is_final(created(AckLevel::Durable, MemoryState::Quarantined)));
        assert!(is_final(IngestResult { disposition: Disposition::Rejected.into(), ..IngestResult::default() }));
        assert!(is_final(IngestResult { disposition: Disposition::Duplicate.into(), ..IngestResult::default() }));
    }
}
