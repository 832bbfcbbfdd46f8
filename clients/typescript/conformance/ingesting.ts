/**
 * The `ingest` command: a source that can stop, a consumer that can be slow.
 *
 * @module
 */

import { MemoryInputSchema } from "../src/gen/clag/v1/types_pb.js";
import {
  AckLevel,
  type ClagClient,
  Disposition,
  type Ingestion,
  IngestStages,
  type ItemLike,
} from "../src/index.js";
import { decoded, outcomeEvent } from "./encode.js";

/** What is ingested, and how. */
export interface IngestCommand {
  readonly namespace?: string;
  readonly stream_id?: string;
  readonly ack_level?: keyof typeof AckLevel;
  readonly stages?: keyof typeof IngestStages;
  readonly items?: readonly string[];
  readonly generate?: {
    readonly count: number;
    readonly text: string;
    readonly memory_id?: string;
    readonly session_id?: string;
  };
  readonly pause_after?: number;
  readonly consume?: string;
  readonly quiet?: boolean;
}

/** One ingestion that runs. */
export class Ingesting {
  readonly #command: IngestCommand;
  readonly #ingestion: Ingestion;
  readonly #resumed: Promise<void>;
  #outcomes = 0;
  /** Let the source, or the consumer, go on. */
  resume!: () => void;

  constructor(client: ClagClient, command: IngestCommand, signal: AbortSignal) {
    this.#command = command;
    this.#resumed = new Promise((resolve) => {
      this.resume = resolve;
    });
    const { namespace = "", stream_id: streamId, ack_level: level, stages } = command;
    this.#ingestion = client.ingest(namespace, this.#items(), {
      signal,
      ...(streamId !== undefined && { streamId }),
      ...(level !== undefined && { ackLevel: AckLevel[level] }),
      ...(stages !== undefined && { stages: IngestStages[stages] }),
    });
  }

  /** How far it has come. */
  progress(): object {
    return { taken: this.#ingestion.taken, outcomes: this.#outcomes };
  }

  /** Ingest to the end. */
  async run(event: (event: object) => void): Promise<object> {
    const counts: Record<string, number> = {};
    let final = 0;
    if (this.#command.consume === "slow") {
      await this.#resumed;
    }
    for await (const outcome of this.#ingestion) {
      this.#outcomes += 1;
      if (outcome.final) {
        final += 1;
        const name = Disposition[outcome.disposition];
        counts[name] = (counts[name] ?? 0) + 1;
      }
      if (!this.#command.quiet) {
        event(outcomeEvent(outcome));
      }
    }
    const { resumedAt, reconnects, taken } = this.#ingestion;
    return { outcomes: counts, final, resumed_at: resumedAt, reconnects, taken };
  }

  async *#items(): AsyncGenerator<ItemLike> {
    let given = 0;
    for (const item of this.#given()) {
      yield item;
      given += 1;
      if (given === this.#command.pause_after) {
        await this.#resumed;
      }
    }
  }

  *#given(): Generator<ItemLike> {
    const { items = [], generate } = this.#command;
    for (const item of items) {
      yield decoded(MemoryInputSchema, item);
    }
    for (let n = 1; n <= (generate?.count ?? 0); n++) {
      const numbered = (text: string | undefined) => (text ?? "").replaceAll("{n}", String(n));
      yield {
        text: numbered(generate?.text),
        memoryId: numbered(generate?.memory_id),
        sessionId: numbered(generate?.session_id),
      };
    }
  }
}
