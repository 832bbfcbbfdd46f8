/**
 * What a call can fail with, decoded from the status details that the server sends.
 *
 * @module
 */

import { Code, ConnectError } from "@connectrpc/connect";

import { ErrorReason } from "./gen/clag/v1/types_pb.js";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

export { Code };

/** One wrong field of a request. */
export interface FieldViolation {
  /** Its path, e.g. `memory.tags[2]`. */
  readonly field: string;
  /** What is wrong. */
  readonly description: string;
}

/** What a `ClagError` carries beside code and message. */
export interface ErrorFacts {
  reason?: ErrorReason;
  violations?: readonly FieldViolation[];
  retryAfterMs?: number | undefined;
  facts?: Readonly<Record<string, string>>;
  cause?: unknown;
}

/**
 * A call failed.
 *
 * It is a `ConnectError` too, so what handles those handles this: `code` is the canonical status code,
 * `rawMessage` the sentence for people, `metadata` the headers and trailers.
 */
export class ClagError extends ConnectError {
  /** Why, for programs; `UNSPECIFIED` when the failure did not come from the server's own code. */
  readonly reason: ErrorReason;
  /** The wrong fields of the request, if that was it. */
  readonly violations: readonly FieldViolation[];
  /** Milliseconds to wait before trying again; undefined when trying again cannot help by itself. */
  readonly retryAfterMs: number | undefined;
  /** Facts by name, e.g. `next_seq` or `incident_id`. */
  readonly facts: Readonly<Record<string, string>>;

  constructor(message: string, code: Code, more: ErrorFacts = {}, metadata?: Headers) {
    super(message, code, metadata, undefined, more.cause);
    this.reason = more.reason ?? ErrorReason.UNSPECIFIED;
    this.violations = more.violations ?? [];
    this.retryAfterMs = more.retryAfterMs;
    this.facts = more.facts ?? {};
  }

  // ConnectError takes everything of its shape for one of its own, and its subclasses would inherit that.
  static override [Symbol.hasInstance](value: unknown): boolean {
    return Function.prototype[Symbol.hasInstance].call(ClagError, value);
  }
}

/** An item handed to `ingest` could not be read, or not be made into a message; `cause` says why. */
export class SourceError extends Error {
  override readonly name = "SourceError";
  /** Sequence number that the item would have had. */
  readonly seq: number;

  constructor(seq: number, cause: unknown) {
    super(`item ${seq} cannot be sent: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.seq = seq;
  }
}

/**
 * Return what a call failed with.
 *
 * @param error - what the call raised.
 * @param signal - the caller's, which may be why it failed.
 * @param status - the failure that the server told, where it is known to have told one.
 */
export function failureOf(error: unknown, signal?: AbortSignal, status?: ConnectError): ClagError {
  if (error instanceof ClagError) {
    return error;
  }
  const told = ConnectError.from(error);
  if (told.metadata.has("grpc-status") || told.details.length > 0) {
    return toldByServer(told);
  }
  if (signal?.aborted) {
    return abortedBy(signal);
  }
  if (status !== undefined) {
    return toldByServer(status);
  }
  if (told.code === Code.DeadlineExceeded) {
    return new ClagError("the deadline passed", Code.DeadlineExceeded, { cause: error });
  }
  const code = connectionBroke(told) ? Code.Unavailable : told.code;
  return new ClagError(told.rawMessage, code, { cause: error }, told.metadata);
}

/** Return the failure of a call whose signal was aborted. */
export function abortedBy(signal: AbortSignal): ClagError {
  const cause: unknown = signal.reason;
  if (cause instanceof ClagError) {
    return cause;
  }
  return cause instanceof Error && cause.name === "TimeoutError"
    ? new ClagError("the signal timed out", Code.DeadlineExceeded, { cause })
    : new ClagError("the caller cancelled the call", Code.Canceled, { cause });
}

function toldByServer(told: ConnectError): ClagError {
  const info = told.findDetails(ErrorInfoSchema)[0];
  const delay = told.findDetails(RetryInfoSchema)[0]?.retryDelay;
  const violations = told
    .findDetails(BadRequestSchema)
    .flatMap((request) => request.fieldViolations)
    .map(({ field, description }) => ({ field, description }));
  const more: ErrorFacts = {
    reason: info?.domain === "clag" ? reasonNamed(info.reason) : ErrorReason.UNSPECIFIED,
    violations,
    retryAfterMs: delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6,
    facts: info?.metadata ?? {},
    cause: told,
  };
  return new ClagError(told.rawMessage, told.code, more, told.metadata);
}

/** A reason that a newer server knows and this client does not is UNSPECIFIED. */
function reasonNamed(name: string): ErrorReason {
  const value = ErrorReason[name.replace(/^ERROR_REASON_/, "") as keyof typeof ErrorReason];
  return typeof value === "number" ? value : ErrorReason.UNSPECIFIED;
}

/** What stands for a failure below the protocol; any other code says precisely what was wrong. */
const VAGUE: ReadonlySet<Code> = new Set([
  Code.Unknown,
  Code.Internal,
  Code.Aborted,
  Code.Canceled,
  Code.Unavailable,
]);

/**
 * Whether a failure that the server did not tell is one of the connection.
 *
 * Node reports sockets that end, refuse or are not there with a string in `code`. A stream that ends with its
 * connection is closed as cancelled or without a status; nobody cancelled it when we did not.
 */
function connectionBroke(error: ConnectError): boolean {
  if (!VAGUE.has(error.code)) {
    return false;
  }
  let cause: unknown = error.cause;
  for (let depth = 0; cause instanceof Error && depth < 8; depth++) {
    if ("code" in cause && typeof cause.code === "string") {
      return true;
    }
    cause = cause.cause;
  }
  return error.code === Code.Canceled || error.code === Code.Aborted;
}
