/**
 * The client.
 *
 * @module
 */

import { randomUUID } from "node:crypto";

import { create, isMessage, type MessageInitShape } from "@bufbuild/protobuf";
import { type CallOptions, type Client, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { headersFor, parseTarget, sessionTo, type Tls } from "./connect.js";
import { ClagError, Code } from "./errors.js";
import { AdminService } from "./gen/clag/v1/admin_service_pb.js";
import { ClusterService } from "./gen/clag/v1/cluster_service_pb.js";
import {
  type AckLevel,
  type AnswerRequest,
  AnswerRequestSchema,
  type AnswerResponse,
  type CreateMemoryResponse,
  type GetContextResponse,
  IngestOpenSchema,
  type IngestStages,
  type ListMemoriesRequestSchema,
  MemoryService,
  type RetrieveRequest,
  type RetrieveResponse,
  WatchRequestSchema,
  type WatchResponse,
} from "./gen/clag/v1/memory_service_pb.js";
import type { Memory } from "./gen/clag/v1/types_pb.js";
import { Ingestion } from "./ingestion.js";
import { DEFAULT_RETRY, Outage, type RetryPolicy } from "./retry.js";
import type { Session } from "./session.js";
import type { Items } from "./source.js";
import { cancelledWhenLeft, watchResponses } from "./streams.js";
import { ClientTransport } from "./transport.js";
import { type ItemLike, type RetrieveQuery, retrieveRequest, toInput } from "./values.js";
import { keepByteOrderMarks } from "./verbatim.js";

keepByteOrderMarks();

/** The server's limit of a message, in both directions (see GetServerInfo). */
const MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
/** A deadline of unary calls and of retrievals; the server cuts longer ones to its own maximum. */
const DEFAULT_TIMEOUT_MS = 30_000;
const DEFAULT_KEEPALIVE_MS = 30_000;

/** How a client reaches its server. */
export interface ClientOptions {
  /** Bearer token; TCP servers ask for one. */
  readonly token?: string;
  /** Left out speaks plain text (Unix sockets, loopback). */
  readonly tls?: Tls;
  /** Deadline, in milliseconds, of unary calls, retrievals and answers that are given none. */
  readonly timeoutMs?: number;
  /** How broken ingest streams and watches are resumed. */
  readonly retry?: Partial<RetryPolicy>;
  /** Milliseconds between pings over TCP while calls are open, so that a dead connection is noticed; 0 for none. */
  readonly keepaliveMs?: number;
}

/** Options of `ingest`. */
export interface IngestOptions {
  /**
   * Names the stream. With the same id and the same items again, the server's position is found and only the rest is
   * sent. Left out makes a new one, which survives reconnects and not this process.
   */
  readonly streamId?: string;
  /** When an item counts as done. */
  readonly ackLevel?: AckLevel;
  /** How much work the server does for the items. */
  readonly stages?: IngestStages;
  /** Cancels the stream. */
  readonly signal?: AbortSignal;
}

/** A question to the server's language model: the retrieval, and how to answer. */
export type AnswerQuery = RetrieveQuery &
  Partial<Pick<AnswerRequest, "maxTokens" | "instructions" | "answerWithoutEvidence">>;

/** Options of `createMemory`. */
export interface CreateOptions extends CallOptions {
  /** Makes repeating the call safe for 24 hours. */
  readonly requestId?: string;
  /** The call waits until the memory has reached this level. */
  readonly ackLevel?: AckLevel;
}

/**
 * A connection to a CLAG server.
 *
 * Every method raises `ClagError` when the call fails, and takes `signal` and `timeoutMs` where it takes call
 * options. For calls that have no method here, the generated stubs are at hand as `memory`, `clusters` and `admin`;
 * they share connection, token, default deadline and errors.
 */
export class ClagClient implements Disposable {
  /** Stubs of the memory service. */
  readonly memory: Client<typeof MemoryService>;
  /** Stubs of the cluster service. */
  readonly clusters: Client<typeof ClusterService>;
  /** Stubs of the admin service. */
  readonly admin: Client<typeof AdminService>;
  /** What all calls go through. */
  readonly transport: Transport;

  readonly #session: Session;
  readonly #closed = new AbortController();
  readonly #timeoutMs: number;
  readonly #retry: RetryPolicy;

  /**
   * Nothing is sent before the first call.
   *
   * @param target - `unix:PATH`, a path that begins with `/`, or `host:port`.
   * @throws ClagError (INVALID_ARGUMENT) if the target is none of these, or a token would cross a network in plain
   *   text.
   */
  constructor(target: string, options: ClientOptions = {}) {
    const where = parseTarget(target);
    const headers = headersFor(options.token ?? "", where, options.tls);
    const keepaliveMs = where.path === undefined ? (options.keepaliveMs ?? DEFAULT_KEEPALIVE_MS) : 0;
    this.#session = sessionTo(where, options.tls, keepaliveMs);
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#retry = { ...DEFAULT_RETRY, ...options.retry };
    const wire = createGrpcTransport({
      baseUrl: this.#session.authority,
      sessionManager: this.#session,
      readMaxBytes: MAX_MESSAGE_BYTES,
      writeMaxBytes: MAX_MESSAGE_BYTES,
    });
    const { statuses } = this.#session;
    const defaults = { headers, timeoutMs: this.#timeoutMs, closed: this.#closed.signal, statuses };
    this.transport = new ClientTransport(wire, defaults);
    this.memory = createClient(MemoryService, this.transport);
    this.clusters = createClient(ClusterService, this.transport);
    this.admin = createClient(AdminService, this.transport);
  }

  /** Cancel what is running and close the connection. */
  close(): void {
    this.#closed.abort(new ClagError("the client was closed", Code.Canceled));
    this.#session.abort();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /**
   * Stream memories in; see `Ingestion`.
   *
   * @param namespace - where they go; created if the server allows it.
   * @param items - read as fast as the server takes them.
   */
  ingest(namespace: string, items: Items, options: IngestOptions = {}): Ingestion {
    const { signal, streamId = randomUUID(), ...rest } = options;
    return new Ingestion({
      memory: this.memory,
      items,
      opening: create(IngestOpenSchema, { namespace, streamId, ...rest }),
      outage: new Outage(this.#retry),
      signals: [this.#closed.signal, signal],
    });
  }

  /**
   * Retrieve in stages: clusters, memories, the context if a budget was given, done. Leaving the loop early cancels
   * the call.
   */
  retrieve(
    query: RetrieveQuery | RetrieveRequest,
    options: CallOptions = {},
  ): AsyncGenerator<RetrieveResponse, void, undefined> {
    const request = retrieveRequest(query);
    return cancelledWhenLeft((linked) => this.memory.retrieve(request, linked), this.#limited(options));
  }

  /** Retrieve everything in one response. */
  getContext(query: RetrieveQuery | RetrieveRequest, options: CallOptions = {}): Promise<GetContextResponse> {
    return this.memory.getContext({ retrieve: retrieveRequest(query) }, options);
  }

  /**
   * Let the server's language model answer from what it finds: clusters, memories, the context, pieces of the answer,
   * done. Where nothing relevant is found there is no piece, and `done.end` is NO_EVIDENCE. Leaving the loop early
   * ends the generation.
   */
  answer(
    question: AnswerQuery | AnswerRequest,
    options: CallOptions = {},
  ): AsyncGenerator<AnswerResponse, void, undefined> {
    const request = answerRequest(question);
    return cancelledWhenLeft((linked) => this.memory.answer(request, linked), this.#limited(options));
  }

  /**
   * Yield changes as they happen, over reconnects. Leave the loop, or abort the signal, to stop.
   *
   * @param request - the namespace, which changes, and where to begin: `startAfter` is `through` of a response seen
   *   before; left out begins now.
   */
  watch(
    request: MessageInitShape<typeof WatchRequestSchema>,
    options: CallOptions = {},
  ): AsyncGenerator<WatchResponse, void, undefined> {
    const asked = create(WatchRequestSchema, request);
    return watchResponses(this.memory, asked, new Outage(this.#retry), options, this.#closed.signal);
  }

  /** Store one memory and wait until it has reached `ackLevel`. */
  async createMemory(
    namespace: string,
    item: ItemLike,
    options: CreateOptions = {},
  ): Promise<CreateMemoryResponse> {
    const { requestId, ackLevel, ...call } = options;
    const request = { namespace, memory: toInput(item), requestId: requestId ?? "", ackLevel: ackLevel ?? 0 };
    return this.memory.createMemory(request, call);
  }

  /** Yield all memories that match, page by page, in order of arrival. */
  async *listMemories(
    request: MessageInitShape<typeof ListMemoriesRequestSchema>,
    options: CallOptions = {},
  ): AsyncGenerator<Memory, void, undefined> {
    let pageToken = request.pageToken ?? "";
    do {
      const page = await this.memory.listMemories({ ...request, pageToken } as typeof request, options);
      yield* page.memories;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  #limited(options: CallOptions): CallOptions {
    return { timeoutMs: this.#timeoutMs, ...options };
  }
}

function answerRequest(question: AnswerQuery | AnswerRequest): AnswerRequest {
  if (isMessage(question, AnswerRequestSchema)) {
    return question;
  }
  const { maxTokens = 0, instructions = "", answerWithoutEvidence = false, ...query } = question;
  const retrieve = retrieveRequest(query as RetrieveQuery);
  return create(AnswerRequestSchema, { retrieve, maxTokens, instructions, answerWithoutEvidence });
}
