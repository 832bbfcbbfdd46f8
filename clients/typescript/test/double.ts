/**
 * A small server that keeps the streaming rules of the contract and can be made to fail in the middle.
 *
 * It stands in for the product's server only where the client's own behaviour is looked at: credits, reconnects,
 * resumption. It checks the client: a gap or an exceeded window fails the call.
 *
 * @module
 */

import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";

import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, type HandlerContext, type ServiceImpl } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";

import {
  AckLevel,
  Disposition,
  type IngestBatch,
  type IngestRequest,
  type IngestResponseSchema,
  MemoryService,
} from "../src/gen/clag/v1/memory_service_pb.js";
import { ErrorReason, MemoryState } from "../src/gen/clag/v1/types_pb.js";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../src/gen/google/rpc/error_details_pb.js";

type Response = MessageInitShape<typeof IngestResponseSchema>;

/** Something that is waited for. */
export class Event {
  set!: () => void;
  readonly happened = new Promise<void>((resolve) => {
    this.set = resolve;
  });
}

/** The failure that the contract promises. */
export function failure(code: Code, reason: ErrorReason, retryMs?: number, field = ""): ConnectError {
  const error = new ConnectError("no", code);
  const info = { reason: `ERROR_REASON_${ErrorReason[reason]}`, domain: "clag", metadata: { a: "b" } };
  error.details.push({ desc: ErrorInfoSchema, value: info });
  if (retryMs !== undefined) {
    const retryDelay = { seconds: 0n, nanos: retryMs * 1_000_000 };
    error.details.push({ desc: RetryInfoSchema, value: { retryDelay } });
  }
  if (field !== "") {
    const fieldViolations = [{ field, description: "is wrong" }];
    error.details.push({ desc: BadRequestSchema, value: { fieldViolations } });
  }
  return error;
}

/** Stores the items of streams in memory. */
export class Double {
  readonly path: string;
  readonly stored = new Map<string, string[]>();
  readonly frames: number[] = [];
  readonly tokens: (string | null)[] = [];
  /** Set when the client has left a call. */
  readonly left = new Event();
  /** Set when a frame came. */
  readonly received = new Event();
  opens = 0;
  window = 1024;
  /** Items that are durable and not yet acknowledged. */
  lag = 0;
  /** Numbers of stored items at which the connection fails, before their acknowledgement, each once. */
  readonly cutAfter = new Set<number>();
  fence = false;
  level = AckLevel.DURABLE;
  /** Acknowledgements wait for it. */
  hold: Promise<void> = Promise.resolve();
  /** Calls that are refused by the connection on which they come, before any other is served. */
  calmed = 0;
  readonly #folder: string;
  readonly #sessions = new Set<ServerHttp2Session>();
  #server: Http2Server | undefined;

  constructor() {
    this.#folder = mkdtempSync(join(tmpdir(), "clag-"));
    this.path = join(this.#folder, "s");
  }

  /** Sessions that were opened. */
  sessions = 0;

  async start(service: Partial<ServiceImpl<typeof MemoryService>> = {}): Promise<this> {
    const handler = connectNodeAdapter({
      routes: (router) => {
        router.service(MemoryService, {
          ingest: (requests, context) => this.#ingest(requests, context),
          ...service,
        });
      },
    });
    const server = createServer((request, response) => {
      if (this.calmed > 0) {
        this.calmed -= 1;
        request.stream.close(0xb); // ENHANCE_YOUR_CALM
        return;
      }
      handler(request, response);
    });
    server.on("session", (session) => {
      this.sessions += 1;
      this.#sessions.add(session);
      session.on("close", () => this.#sessions.delete(session));
    });
    this.#server = server;
    await new Promise<void>((resolve) => server.listen(this.path, resolve));
    return this;
  }

  /** End at once, as a killed process does. */
  async kill(): Promise<void> {
    const closed = new Promise((resolve) => this.#server?.close(resolve));
    for (const session of this.#sessions) {
      session.destroy();
    }
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true });
  }

  async *#ingest(requests: AsyncIterable<IngestRequest>, context: HandlerContext): AsyncGenerator<Response> {
    context.signal.addEventListener("abort", () => this.left.set());
    this.tokens.push(context.requestHeader.get("authorization"));
    this.opens += 1;
    if (this.fence) {
      throw failure(Code.Aborted, ErrorReason.STREAM_FENCED);
    }
    let texts: string[] = [];
    let acked = 0;
    for await (const { frame } of requests) {
      if (frame.case === "open") {
        texts = this.stored.get(frame.value.streamId) ?? [];
        this.stored.set(frame.value.streamId, texts);
        acked = texts.length;
        yield { frame: { case: "opened", value: { nextSeq: BigInt(acked + 1), windowItems: this.window } } };
      } else if (frame.case === "batch") {
        const results = this.#store(frame.value, texts, acked);
        await this.hold;
        acked = Math.max(acked, texts.length - this.lag);
        const value = {
          ackedThrough: BigInt(acked),
          durableThrough: BigInt(texts.length),
          windowItems: this.window,
          results,
        };
        yield { frame: { case: "ack", value } };
      } else if (frame.case === "finish") {
        if (frame.value.lastSeq !== BigInt(texts.length)) {
          throw failure(Code.OutOfRange, ErrorReason.SEQUENCE_GAP);
        }
        yield { frame: { case: "finished", value: { created: BigInt(texts.length) } } };
        return;
      }
    }
  }

  #store({ firstSeq, items }: IngestBatch, texts: string[], acked: number) {
    if (firstSeq !== BigInt(texts.length + 1)) {
      throw failure(Code.OutOfRange, ErrorReason.SEQUENCE_GAP);
    }
    if (texts.length + items.length - acked > this.window) {
      throw failure(Code.ResourceExhausted, ErrorReason.WINDOW_EXCEEDED);
    }
    this.frames.push(items.length);
    this.received.set();
    return items.map(({ text }) => {
      texts.push(text);
      if (this.cutAfter.delete(texts.length)) {
        throw failure(Code.Unavailable, ErrorReason.DRAINING, 0);
      }
      return {
        seq: BigInt(texts.length),
        disposition: Disposition.CREATED,
        level: this.level,
        memoryId: `m${texts.length}`,
        state: MemoryState.STORED,
      };
    });
  }
}
