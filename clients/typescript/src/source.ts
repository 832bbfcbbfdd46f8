/**
 * Reads the caller's items, once for a whole ingestion, whatever happens to connections.
 *
 * @module
 */

import { setImmediate } from "node:timers/promises";

import { SourceError } from "./errors.js";
import { MemoryInputSchema } from "./gen/clag/v1/types_pb.js";
import { measure } from "./measure.js";
import { type ItemLike, toInput } from "./values.js";
import type { SendWindow } from "./window.js";

/** A source of items. */
export type Items = Iterable<ItemLike> | AsyncIterable<ItemLike>;

const SKIPPED_AT_ONCE = 256;

/** The reading side of an ingestion. */
export class Source {
  /** Items that were taken from the source. */
  taken = 0;
  readonly #items: Items;
  #iterator: Iterator<ItemLike> | AsyncIterator<ItemLike> | undefined;
  #closed = false;

  /** @throws TypeError for what is no source; a text is none, though it can be iterated. */
  constructor(items: Items) {
    if (typeof items !== "object" || !(Symbol.asyncIterator in items || Symbol.iterator in items)) {
      throw new TypeError("the items are neither an iterable nor an async iterable");
    }
    this.#items = items;
  }

  /**
   * Fill a window to the end, as fast as it has room. A failure of the items becomes the end.
   *
   * @param window - where the items go.
   * @param skip - number of items to leave out, because the server has them.
   */
  async pump(window: SendWindow, skip: number): Promise<void> {
    const items = this.#items;
    const waits = Symbol.asyncIterator in items;
    const iterator = waits ? items[Symbol.asyncIterator]() : items[Symbol.iterator]();
    this.#iterator = iterator;
    let failure: SourceError | undefined;
    try {
      for (;;) {
        await window.changed.until(() => this.#closed || window.hasRoom);
        if (this.#closed) {
          return;
        }
        const step = waits ? await iterator.next() : (iterator.next() as IteratorResult<ItemLike>);
        if (step.done === true) {
          break;
        }
        this.taken += 1;
        if (this.taken > skip) {
          keep(window, this.taken, step.value);
        } else if (this.taken % SKIPPED_AT_ONCE === 0) {
          await setImmediate(); // a long source that is read again must not hold the loop
        }
      }
    } catch (error) {
      failure = error instanceof SourceError ? error : new SourceError(this.taken + 1, error);
      this.#finish();
    }
    window.end = { failure };
    window.changed.notify();
  }

  /** Stop reading, and tell the items so. */
  close(): void {
    this.#closed = true;
    this.#finish();
  }

  #finish(): void {
    const iterator = this.#iterator;
    this.#iterator = undefined;
    // An iterator that waits for its next item ends after it; nobody waits for that.
    Promise.resolve()
      .then(() => iterator?.return?.())
      .catch(() => {});
  }
}

function keep(window: SendWindow, seq: number, item: ItemLike): void {
  try {
    const input = toInput(item);
    window.keep(input, measure(MemoryInputSchema, input));
  } catch (error) {
    throw new SourceError(seq, error);
  }
}
