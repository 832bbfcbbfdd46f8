/**
 * What became of the items of a stream.
 *
 * @module
 */

import { AckLevel, Disposition, type IngestResult } from "./gen/clag/v1/memory_service_pb.js";
import { type ItemError, MemoryState } from "./gen/clag/v1/types_pb.js";

/** What became of an item, as far as it has come. An item may come again when it has come further. */
export interface Outcome {
  /** Its number in the source, from 1. */
  readonly seq: number;
  /**
   * CREATED, DUPLICATE or REJECTED; UNSPECIFIED for an item that is durable but whose progress was lost sight of
   * with a connection.
   */
  readonly disposition: Disposition;
  /** The acknowledgement level that it has reached; UNSPECIFIED when rejected. */
  readonly level: AckLevel;
  /** Its memory; empty when rejected. */
  readonly memoryId: string;
  /** Its cluster; empty while it has none. */
  readonly clusterId: string;
  /** Its state. */
  readonly state: MemoryState;
  /** Why it was rejected or quarantined. */
  readonly error: ItemError | undefined;
  /** Whether nothing more comes of it: it has reached the level that was asked for, or never will. */
  readonly final: boolean;
}

/**
 * Return an outcome as the server reports it.
 *
 * @param result - the report.
 * @param wanted - the level that the stream asked for.
 */
export function outcomeOf(result: IngestResult, wanted: AckLevel): Outcome {
  const { disposition, level, memoryId, clusterId, state, error } = result;
  const final = disposition !== Disposition.CREATED || level >= wanted || state === MemoryState.QUARANTINED;
  return { seq: Number(result.seq), disposition, level, memoryId, clusterId, state, error, final };
}

/**
 * Return the last outcome of an item that is durable and whose progress was lost sight of with a connection.
 *
 * @param seq - the item.
 * @param memoryId - its memory as far as it is known; empty when its report was lost too.
 */
export function lostOutcome(seq: number, memoryId: string): Outcome {
  return {
    seq,
    disposition: Disposition.UNSPECIFIED,
    level: AckLevel.DURABLE,
    memoryId,
    clusterId: "",
    state: MemoryState.UNSPECIFIED,
    error: undefined,
    final: true,
  };
}
