/**
 * The commands of the runner's protocol, each a thin cover over the client.
 *
 * @module
 */

import {
  create,
  createRegistry,
  type DescMethod,
  type DescMethodStreaming,
  type DescMethodUnary,
  type Message,
} from "@bufbuild/protobuf";

import { file_clag_v1_admin_service } from "../src/gen/clag/v1/admin_service_pb.js";
import { file_clag_v1_cluster_service } from "../src/gen/clag/v1/cluster_service_pb.js";
import {
  AnswerRequestSchema,
  AnswerResponseSchema,
  file_clag_v1_memory_service,
  GetContextRequestSchema,
  GetContextResponseSchema,
  RetrieveRequestSchema,
  RetrieveResponseSchema,
  WatchRequestSchema,
  WatchResponseSchema,
} from "../src/gen/clag/v1/memory_service_pb.js";
import { file_clag_v1_types } from "../src/gen/clag/v1/types_pb.js";
import { ClagClient, ClagError, type ClientOptions, Code } from "../src/index.js";
import { decoded, encoded } from "./encode.js";
import { type IngestCommand, Ingesting } from "./ingesting.js";

/** One command. */
export interface Command extends IngestCommand {
  readonly id: number;
  readonly op: string;
  readonly name?: string;
  readonly target?: unknown;
  readonly token?: string;
  readonly tls?: { readonly ca?: string; readonly certificate?: string; readonly key?: string };
  readonly timeout_ms?: number;
  readonly method?: string;
  readonly request?: string;
  readonly requests?: readonly string[];
  readonly half_close?: boolean;
  readonly type?: string;
  readonly data?: string;
  readonly value?: string;
  readonly limit?: number;
}

const registry = createRegistry(
  file_clag_v1_admin_service,
  file_clag_v1_cluster_service,
  file_clag_v1_memory_service,
  file_clag_v1_types,
);

/** Runs commands, several at once. */
export class Runner {
  readonly #send: (message: object) => void;
  readonly #clients = new Map<string, ClagClient>();
  readonly #signals = new Map<unknown, AbortController>();
  readonly #ingesting = new Map<unknown, Ingesting>();

  /** @param send - writes one message. */
  constructor(send: (message: object) => void) {
    this.#send = send;
  }

  /** Close every client. */
  close(): void {
    for (const client of this.#clients.values()) {
      client.close();
    }
    this.#clients.clear();
  }

  /** Run a command to its end; returns what `ok` holds. */
  async run(command: Command): Promise<object> {
    const controller = new AbortController();
    this.#signals.set(command.id, controller);
    try {
      return await this.#do(command, controller.signal);
    } finally {
      this.#signals.delete(command.id);
      this.#ingesting.delete(command.id);
    }
  }

  async #do(command: Command, signal: AbortSignal): Promise<object> {
    switch (command.op) {
      case "connect":
        return this.#connect(command);
      case "close":
        this.#client(command).close();
        return {};
      case "call":
        return this.#call(command, signal);
      case "roundtrip":
        return roundtrip(command);
      case "text":
        return this.#text(command, signal);
      case "ingest":
        return this.#ingest(command, signal);
      case "resume":
        this.#ingesting.get(command.target)?.resume();
        return {};
      case "progress":
        return this.#ingesting.get(command.target)?.progress() ?? {};
      case "retrieve":
        return this.#retrieve(command, signal);
      case "context":
        return this.#context(command, signal);
      case "answer":
        return this.#answer(command, signal);
      case "watch":
        return this.#watch(command, signal);
      case "cancel":
        this.#signals.get(command.target)?.abort();
        return {};
      default:
        throw new ClagError(`there is no command ${command.op}`, Code.Unimplemented);
    }
  }

  #client({ name = "a" }: Command): ClagClient {
    const client = this.#clients.get(name);
    if (client === undefined) {
      throw new TypeError(`there is no client ${name}`);
    }
    return client;
  }

  #connect(command: Command): object {
    const { name = "a", token, tls, timeout_ms: timeoutMs } = command;
    const options: ClientOptions = {
      ...(token !== undefined && { token }),
      ...(tls !== undefined && { tls }),
      ...(timeoutMs !== undefined && { timeoutMs }),
    };
    const client = new ClagClient(String(command.target), options);
    this.#clients.get(name)?.close();
    this.#clients.set(name, client);
    return {};
  }

  async #call(command: Command, signal: AbortSignal): Promise<object> {
    const { transport } = this.#client(command);
    const method = methodNamed(command.method ?? "");
    const limit = command.timeout_ms;
    if (method.methodKind === "unary") {
      const request = decoded(method.input, command.request);
      const { message } = await transport.unary(method as DescMethodUnary, signal, limit, undefined, request);
      return { response: encoded(method.output, message) };
    }
    const requests = messages(method, command, signal);
    const streaming = method as DescMethodStreaming;
    const { message } = await transport.stream(streaming, signal, limit, undefined, requests);
    for await (const response of message) {
      this.#event(command, { response: encoded(method.output, response) });
    }
    return {};
  }

  async #text(command: Command, signal: AbortSignal): Promise<object> {
    const item = { text: command.value ?? "" };
    const { memory } = await this.#client(command).createMemory("surrogates", item, { signal });
    return { value: memory?.text };
  }

  #ingest(command: Command, signal: AbortSignal): Promise<object> {
    const { timeout_ms: limit } = command;
    const ending = limit === undefined ? signal : AbortSignal.any([signal, AbortSignal.timeout(limit)]);
    const ingesting = new Ingesting(this.#client(command), command, ending);
    this.#ingesting.set(command.id, ingesting);
    return ingesting.run((event) => this.#event(command, event));
  }

  async #retrieve(command: Command, signal: AbortSignal): Promise<object> {
    const request = decoded(RetrieveRequestSchema, command.request);
    for await (const response of this.#client(command).retrieve(request, callOptions(command, signal))) {
      this.#event(command, {
        stage: response.stage.case,
        response: encoded(RetrieveResponseSchema, response),
      });
    }
    return {};
  }

  async #context(command: Command, signal: AbortSignal): Promise<object> {
    const { retrieve } = decoded(GetContextRequestSchema, command.request);
    const query = retrieve ?? create(RetrieveRequestSchema);
    const response = await this.#client(command).getContext(query, callOptions(command, signal));
    return { response: encoded(GetContextResponseSchema, response) };
  }

  async #answer(command: Command, signal: AbortSignal): Promise<object> {
    const request = decoded(AnswerRequestSchema, command.request);
    for await (const response of this.#client(command).answer(request, callOptions(command, signal))) {
      this.#event(command, { response: encoded(AnswerResponseSchema, response) });
    }
    return {};
  }

  async #watch(command: Command, signal: AbortSignal): Promise<object> {
    const request = decoded(WatchRequestSchema, command.request);
    let left = command.limit ?? Number.POSITIVE_INFINITY;
    for await (const response of this.#client(command).watch(request, callOptions(command, signal))) {
      this.#event(command, { response: encoded(WatchResponseSchema, response) });
      left -= 1;
      if (left <= 0) {
        break;
      }
    }
    return {};
  }

  #event({ id }: Command, event: object): void {
    this.#send({ id, event });
  }
}

function callOptions({ timeout_ms: timeoutMs }: Command, signal: AbortSignal) {
  return { signal, ...(timeoutMs !== undefined && { timeoutMs }) };
}

function methodNamed(name: string): DescMethod {
  const [service = "", method = ""] = name.split("/");
  const found = registry.getService(service)?.methods.find((one) => one.name === method);
  if (found === undefined) {
    throw new TypeError(`there is no method ${name}`);
  }
  return found;
}

/** The requests of a call that streams; the client's side is left open where the command says so. */
async function* messages(method: DescMethod, command: Command, signal: AbortSignal): AsyncGenerator<Message> {
  for (const request of command.requests ?? [command.request]) {
    yield decoded(method.input, request);
  }
  if (command.half_close === false) {
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
  }
}

function roundtrip({ type = "", data }: Command): object {
  const desc = registry.getMessage(type);
  if (desc === undefined) {
    throw new TypeError(`there is no message ${type}`);
  }
  return { data: encoded(desc, decoded(desc, data)) };
}
