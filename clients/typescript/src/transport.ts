/**
 * What every call goes through, those of the generated stubs too: the token, the default deadline, the look at what
 * is sent, and errors that say what the server said.
 *
 * @module
 */

import { create, type DescMessage, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

import { type ClagError, failureOf } from "./errors.js";
import { Linked } from "./linked.js";
import { measure } from "./measure.js";
import { CALL_HEADER, type HeardCall, type Statuses } from "./statuses.js";

/** What a client gives to all its calls. */
export interface CallDefaults {
  /** Headers of every call. */
  readonly headers: ReadonlyMap<string, string>;
  /** Deadline of unary calls that are given none, in milliseconds. */
  readonly timeoutMs: number;
  /** Aborted when the client is closed. */
  readonly closed: AbortSignal;
  /** How the calls end. */
  readonly statuses: Statuses;
}

/** One call: the signals that cancel it, and how the server says that it ended. */
class Call extends Linked {
  readonly #heard: HeardCall;

  constructor(heard: HeardCall, ...signals: (AbortSignal | undefined)[]) {
    super(...signals);
    this.#heard = heard;
  }

  get id(): string {
    return this.#heard.id;
  }

  /** Return what it failed with. */
  failure(error: unknown): ClagError {
    return failureOf(error, this.signal, this.#heard.failure());
  }

  end(): void {
    this.#heard.end();
    this.unlink();
  }
}

/** Adds the defaults of a client, refuses texts without a UTF-8 form, and raises `ClagError`. */
export class ClientTransport implements Transport {
  readonly #wire: Transport;
  readonly #defaults: CallDefaults;

  /**
   * @param wire - what makes the calls.
   * @param defaults - the client's.
   */
  constructor(wire: Transport, defaults: CallDefaults) {
    this.#wire = wire;
    this.#defaults = defaults;
  }

  unary: Transport["unary"] = async (method, signal, timeoutMs, header, input, values) => {
    const call = this.#call(signal);
    try {
      const message = checked(method.input, input);
      const limit = timeoutMs ?? this.#defaults.timeoutMs;
      return await this.#wire.unary(
        method,
        call.signal,
        limit,
        this.#headers(header, call),
        message as never,
        values,
      );
    } catch (error) {
      throw call.failure(error);
    } finally {
      call.end();
    }
  };

  stream: Transport["stream"] = async (method, signal, timeoutMs, header, input, values) => {
    const call = this.#call(signal);
    try {
      const messages = eachChecked(method.input, input) as never;
      const headers = this.#headers(header, call);
      const response = await this.#wire.stream(method, call.signal, timeoutMs, headers, messages, values);
      return { ...response, message: told(response.message, call) };
    } catch (error) {
      call.end();
      throw call.failure(error);
    }
  };

  #call(signal: AbortSignal | undefined): Call {
    return new Call(this.#defaults.statuses.begin(), this.#defaults.closed, signal);
  }

  #headers(given: ConstructorParameters<typeof Headers>[0], call: Call): Headers {
    const headers = new Headers(given);
    headers.set(CALL_HEADER, call.id);
    for (const [name, value] of this.#defaults.headers) {
      headers.set(name, value);
    }
    return headers;
  }
}

function checked<Desc extends DescMessage>(desc: Desc, input: MessageInitShape<Desc>): MessageShape<Desc> {
  const message = create(desc, input);
  measure(desc, message);
  return message;
}

async function* eachChecked<Desc extends DescMessage>(
  desc: Desc,
  inputs: AsyncIterable<MessageInitShape<Desc>>,
): AsyncGenerator<MessageShape<Desc>> {
  for await (const input of inputs) {
    yield checked(desc, input);
  }
}

async function* told<T>(messages: AsyncIterable<T>, call: Call): AsyncGenerator<T> {
  try {
    yield* messages;
  } catch (error) {
    throw call.failure(error);
  } finally {
    call.end();
  }
}
