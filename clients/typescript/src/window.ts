/**
 * The items of a stream that the server does not have for certain, and how many of them may be sent.
 *
 * @module
 */

import type { Changed } from "./changed.js";
import type { SourceError } from "./errors.js";
import type { IngestOpened } from "./gen/clag/v1/memory_service_pb.js";
import type { MemoryInput } from "./gen/clag/v1/types_pb.js";

/** Frames of 64 items cost the server 3 µs an item, single ones ten times that; larger ones gain nothing. */
export const MAX_FRAME_ITEMS = 64;
/** The contract's limit of a frame. */
export const MAX_FRAME_BYTES = 1024 * 1024;
const FRAME_OVERHEAD_BYTES = 64;
/** One frame more than the window is read ahead, to be there when the next acknowledgement comes. */
const READ_AHEAD = MAX_FRAME_ITEMS;

interface Kept {
  readonly item: MemoryInput;
  readonly bytes: number;
}

/** Items from the first that is not durable on, sent or not; the k-th item of the source has number k. */
export class SendWindow {
  /** Told about everything that happens here. */
  readonly changed: Changed;
  /** Number of the last item that is known to be on the server's disk, with all before it. */
  durable = 0;
  /** The end of the source, once all items before it are here. */
  end: { readonly failure: SourceError | undefined } | undefined;
  #kept: Kept[] = [];
  #acked = 0;
  #window = 0;
  #frameItems = MAX_FRAME_ITEMS;
  #frameBytes = MAX_FRAME_BYTES;

  constructor(changed: Changed) {
    this.changed = changed;
  }

  /** Number of the last item that is here or durable. */
  get last(): number {
    return this.durable + this.#kept.length;
  }

  /** Whether another item may be read. */
  get hasRoom(): boolean {
    return this.#kept.length < this.#window + READ_AHEAD;
  }

  /** Take in a new connection: its position, window and limits. */
  open(opened: IngestOpened): void {
    this.#frameItems = Math.min(MAX_FRAME_ITEMS, opened.maxBatchItems || MAX_FRAME_ITEMS);
    this.#frameBytes =
      Math.min(MAX_FRAME_BYTES, opened.maxBatchBytes || MAX_FRAME_BYTES) - FRAME_OVERHEAD_BYTES;
    const through = Number(opened.nextSeq) - 1;
    this.advance(through, through, opened.windowItems);
  }

  /** Take in an acknowledgement. */
  advance(acked: number, durable: number, window: number): void {
    if (durable > this.durable) {
      this.#kept.splice(0, durable - this.durable);
      this.durable = durable;
    }
    this.#acked = Math.max(this.#acked, acked);
    this.#window = window;
    this.changed.notify();
  }

  /** Keep an item that was read. */
  keep(item: MemoryInput, bytes: number): void {
    this.#kept.push({ item, bytes });
    this.changed.notify();
  }

  /** Whether an item is here and the credit allows to send it. */
  maySend(seq: number): boolean {
    return seq <= this.last && seq <= this.#acked + this.#window;
  }

  /** Whether fewer items are here from a number on than a frame holds, and more may come. */
  partial(from: number): boolean {
    return this.end === undefined && this.last - from + 1 < this.#frameItems;
  }

  /** The items from a number on that fit in a frame and in the credit. */
  batch(from: number): MemoryInput[] {
    const batch: MemoryInput[] = [];
    let bytes = 0;
    for (let seq = from; batch.length < this.#frameItems && this.maySend(seq); seq++) {
      const kept = this.#kept[seq - this.durable - 1] as Kept;
      bytes += kept.bytes;
      if (batch.length > 0 && bytes > this.#frameBytes) {
        break;
      }
      batch.push(kept.item);
    }
    return batch;
  }
}
