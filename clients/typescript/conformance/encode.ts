/**
 * How messages, outcomes and errors are written in the runner's protocol.
 *
 * @module
 */

import { type DescMessage, fromBinary, type Message, type MessageShape, toBinary } from "@bufbuild/protobuf";

import {
  ClagError,
  Code,
  Disposition,
  ErrorReason,
  MemoryState,
  type Outcome,
  SourceError,
} from "../src/index.js";

/** Decode a message from base64. */
export function decoded<Desc extends DescMessage>(desc: Desc, data: string | undefined): MessageShape<Desc> {
  return fromBinary(desc, Buffer.from(data ?? "", "base64"));
}

/** Encode a message in base64. */
export function encoded(desc: DescMessage, message: Message): string {
  return Buffer.from(toBinary(desc, message)).toString("base64");
}

/** An outcome as an event. */
export function outcomeEvent(outcome: Outcome): object {
  const { seq, memoryId, final, error } = outcome;
  return {
    seq,
    disposition: Disposition[outcome.disposition],
    memory_id: memoryId,
    state: MemoryState[outcome.state],
    final,
    ...(error && { error: { reason: reasonName(error.reason), field: error.field, message: error.message } }),
  };
}

/** The error that a user of the client sees. */
export function errorOf(error: unknown): object {
  if (error instanceof SourceError) {
    const told =
      error.cause instanceof ClagError ? errorOf(error.cause) : { code: "INVALID_ARGUMENT", reason: "" };
    return { ...told, message: error.message };
  }
  if (!(error instanceof ClagError)) {
    return { code: "UNKNOWN", reason: "", message: `not the client's own error: ${error}` };
  }
  const { violations, retryAfterMs } = error;
  return {
    code: canonical(error.code),
    reason: error.reason === ErrorReason.UNSPECIFIED ? "" : reasonName(error.reason),
    message: error.rawMessage,
    ...(violations.length > 0 && { violations }),
    ...(retryAfterMs !== undefined && { retry_after_ms: Math.round(retryAfterMs) }),
  };
}

function reasonName(reason: ErrorReason): string {
  return ErrorReason[reason] ?? String(reason);
}

function canonical(code: Code): string {
  return code === Code.Canceled ? "CANCELLED" : Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}
