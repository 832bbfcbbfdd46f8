/**
 * TypeScript client of CLAG, a memory sidecar for small-language-model agents.
 *
 * Values are the generated messages of `clag.v1` (`@clag/client/v1`), which carry the contract's documentation;
 * `NewMemory` and `RetrieveQuery` are plain objects for what is sent most.
 *
 * @module
 */

export type { CallOptions } from "@connectrpc/connect";
export {
  type AnswerQuery,
  ClagClient,
  type ClientOptions,
  type CreateOptions,
  type IngestOptions,
} from "./client.js";
export type { Tls } from "./connect.js";
export { ClagError, Code, type FieldViolation, SourceError } from "./errors.js";
export { AckLevel, Disposition, IngestStages } from "./gen/clag/v1/memory_service_pb.js";
export { ErrorReason, MemoryKind, MemoryState } from "./gen/clag/v1/types_pb.js";
export type { Ingestion } from "./ingestion.js";
export type { Outcome } from "./outcomes.js";
export type { RetryPolicy } from "./retry.js";
export type { Items } from "./source.js";
export type { Attribute, ItemLike, NewMemory, RetrieveQuery } from "./values.js";
