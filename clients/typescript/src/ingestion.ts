/**
 * One resumable stream of memories: credits, frames, reconnects, outcomes.
 *
 * The k-th item of the source has sequence number k. Items are kept until the server says that they are durable, so
 * that a new connection can send them again; the server ignores what it already has. Three things go on at once:
 *
 * - the source is read into a window, once for the whole ingestion;
 * - each connection has a generator of requests, which makes frames of what is there, within the credit;
 * - acknowledgements are read into a bounded queue of outcomes, and another connection is opened when one breaks.
 *
 * A consumer that does not read outcomes stops the reading of acknowledgements, which stops the credit, which stops
 * the source: memory stays bounded by the window.
 *
 * @module
 */

import type { Client } from "@connectrpc/connect";

import { BoundedQueue, Changed } from "./changed.js";
import { ClagError, Code } from "./errors.js";
import {
  AckLevel,
  type IngestAck,
  type IngestFinished,
  type IngestOpen,
  type IngestOpened,
  type MemoryService,
} from "./gen/clag/v1/memory_service_pb.js";
import { Linked } from "./linked.js";
import { lostOutcome, type Outcome, outcomeOf } from "./outcomes.js";
import { Connection, ingestRequests } from "./requests.js";
import type { Outage } from "./retry.js";
import { type Items, Source } from "./source.js";
import { SendWindow } from "./window.js";

const QUEUED_OUTCOMES = 1024;
const GOODBYE_MS = 2_000;

/** What an ingestion works with. */
export interface IngestionParts {
  readonly memory: Client<typeof MemoryService>;
  readonly items: Items;
  readonly opening: IngestOpen;
  readonly outage: Outage;
  readonly signals: readonly (AbortSignal | undefined)[];
}

/**
 * A running ingestion: an async iterable of outcomes, to be iterated once. It works from the moment it is made.
 *
 * Leaving the loop early, `close` and `await using` cancel the stream: what was acknowledged stays, and the same
 * `streamId` resumes.
 */
export class Ingestion implements AsyncIterableIterator<Outcome>, AsyncDisposable {
  /** Names the stream. */
  readonly streamId: string;
  /** Whether the server has opened the stream; from then on one that goes away is looked for. */
  opened = false;
  /**
   * Number of the first item that was sent, known once the stream was opened; items before it were durable from an
   * earlier run and have no outcomes.
   */
  resumedAt = 1;
  /** Connections opened after the first. */
  reconnects = 0;
  /** The server's counts of the whole stream, once it is finished. */
  totals: IngestFinished | undefined;

  readonly #memory: Client<typeof MemoryService>;
  readonly #opening: IngestOpen;
  readonly #outage: Outage;
  readonly #level: AckLevel;
  readonly #source: Source;
  readonly #ended: Linked;
  readonly #changed = new Changed();
  readonly #window = new SendWindow(this.#changed);
  readonly #outcomes = new BoundedQueue<Outcome>(QUEUED_OUTCOMES);
  /** Memory ids, as far as known, of sent items without a final outcome. */
  readonly #awaited = new Map<number, string>();
  readonly #running: Promise<void>;

  /** @throws TypeError if the items are no source. */
  constructor({ memory, items, opening, outage, signals }: IngestionParts) {
    this.streamId = opening.streamId;
    this.#memory = memory;
    this.#opening = opening;
    this.#outage = outage;
    this.#level = opening.ackLevel || AckLevel.DURABLE;
    this.#source = new Source(items);
    this.#ended = new Linked(...signals);
    this.#ended.signal.addEventListener("abort", () => this.#outcomes.release());
    this.#running = this.#run();
  }

  /** Number of the last item that is known to be on the server's disk, with all before it. */
  get durableThrough(): number {
    return this.#window.durable;
  }

  /** Items that were taken from the source. */
  get taken(): number {
    return this.#source.taken;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /**
   * Return the next outcome; ends when every item has reached the level that was asked for.
   *
   * @throws ClagError if the stream cannot be finished.
   * @throws SourceError if the source failed, after what it gave before was stored.
   */
  async next(): Promise<IteratorResult<Outcome, undefined>> {
    const value = await this.#outcomes.take();
    return value === undefined ? { done: true, value } : { done: false, value };
  }

  /** Cancel what is not finished; called when a loop is left early. */
  async return(): Promise<IteratorResult<Outcome, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /**
   * Pass over the remaining outcomes and return the server's counts.
   *
   * @throws ClagError if the stream cannot be finished.
   * @throws SourceError if the source failed.
   */
  async wait(): Promise<IngestFinished> {
    while ((await this.#outcomes.take()) !== undefined) {
      // passed over
    }
    if (this.totals === undefined) {
      throw new ClagError("the ingestion was ended before it was finished", Code.Canceled);
    }
    return this.totals;
  }

  /** Cancel what is not finished. What was acknowledged stays. */
  async close(): Promise<void> {
    this.#ended.abort(new ClagError("the ingestion was closed", Code.Canceled));
    await this.#running;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #run(): Promise<void> {
    let failure: Error | undefined;
    try {
      await this.#connectUntilFinished();
    } catch (error) {
      failure = error as Error;
    }
    this.#source.close();
    this.#changed.notify();
    this.#ended.unlink();
    this.#outcomes.end(failure);
  }

  async #connectUntilFinished(): Promise<void> {
    while (this.totals === undefined) {
      const before = this.#window.durable;
      try {
        await this.#connect();
      } catch (error) {
        if (!(error instanceof ClagError) || (!this.opened && error.retryAfterMs === undefined)) {
          throw error; // of the source, or the server was never there
        }
        await this.#outage.wait(error, this.#window.durable > before, this.#ended.signal);
        this.reconnects += 1;
      }
    }
  }

  /** Work over one connection until the stream is finished. Throws when it breaks. */
  async #connect(): Promise<void> {
    const connection = new Connection(this.#ended.signal);
    let goodbye: NodeJS.Timeout | undefined;
    try {
      const responses = this.#memory.ingest(
        ingestRequests(this.#opening, this.#window, this.#awaited, connection),
        { signal: connection.signal },
      );
      for await (const { frame } of responses) {
        if (!connection.opened) {
          if (frame.case !== "opened") {
            throw new ClagError("the server did not answer open with opened", Code.Internal);
          }
          await this.#open(frame.value);
          connection.opened = true;
          this.#changed.notify();
        } else if (frame.case === "ack") {
          await this.#take(frame.value);
        } else if (frame.case === "finished") {
          this.totals = frame.value;
          // Let the server close, so that it does not see a cancelled call.
          goodbye = setTimeout(() => connection.abort(), GOODBYE_MS);
        }
      }
      if (this.totals === undefined) {
        throw new ClagError("the server ended the stream before it was finished", Code.Unavailable);
      }
    } catch (error) {
      if (this.totals === undefined) {
        throw connection.failure ?? error;
      }
    } finally {
      clearTimeout(goodbye);
      connection.over = true;
      connection.abort();
      connection.unlink();
      this.#changed.notify();
    }
  }

  async #open(opened: IngestOpened): Promise<void> {
    const through = Number(opened.nextSeq) - 1;
    this.#outage.connected();
    if (this.opened && (through < this.#window.durable || through > this.#window.last)) {
      const sentence = `the server asks for item ${opened.nextSeq}, which this stream cannot send (again)`;
      throw new ClagError(sentence, Code.DataLoss);
    }
    if (!this.opened) {
      this.opened = true;
      this.resumedAt = through + 1;
      this.#window.open(opened);
      void this.#source.pump(this.#window, through);
      return;
    }
    for (const [seq, memoryId] of [...this.#awaited]) {
      if (seq <= through) {
        this.#awaited.delete(seq);
        await this.#outcomes.put(lostOutcome(seq, memoryId));
      }
    }
    this.#window.open(opened);
  }

  async #take(ack: IngestAck): Promise<void> {
    for (const result of ack.results) {
      const outcome = outcomeOf(result, this.#level);
      if (outcome.final) {
        this.#awaited.delete(outcome.seq);
      } else if (this.#awaited.has(outcome.seq)) {
        this.#awaited.set(outcome.seq, outcome.memoryId);
      }
      await this.#outcomes.put(outcome);
    }
    this.#window.advance(Number(ack.ackedThrough), Number(ack.durableThrough), ack.windowItems);
  }
}
