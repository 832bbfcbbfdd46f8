/**
 * Plain values for what a client sends most: memories and queries.
 *
 * @module
 */

import { create, isMessage, type MessageInitShape } from "@bufbuild/protobuf";
import { type Timestamp, timestampFromDate } from "@bufbuild/protobuf/wkt";

import { type RetrieveRequest, RetrieveRequestSchema } from "./gen/clag/v1/memory_service_pb.js";
import {
  type AttributeValue,
  AttributeValueSchema,
  type MemoryInput,
  MemoryInputSchema,
  type MemoryKind,
} from "./gen/clag/v1/types_pb.js";

/**
 * A typed attribute. A whole number is sent as an integer and any other as a double (filters compare the two as
 * numbers); for anything else, give an `AttributeValue`.
 */
export type Attribute = string | boolean | number | bigint | readonly string[] | AttributeValue;

/** A memory to store. Limits are those of `clag.v1.MemoryInput`. */
export interface NewMemory {
  /** The text, 1 to 32,768 bytes of UTF-8. */
  readonly text: string;
  /** Left out lets the server make one; a repeated id is a duplicate, never a second memory. */
  readonly memoryId?: string;
  /** What kind of experience it is. */
  readonly kind?: MemoryKind;
  /** What the agent was doing. */
  readonly task?: string;
  /** Who spoke, or which role or sensor it came from. */
  readonly speaker?: string;
  /** The session that it belongs to. */
  readonly sessionId?: string;
  /** Tags. */
  readonly tags?: readonly string[];
  /** Typed attributes, which filters compare. */
  readonly attributes?: Readonly<Record<string, Attribute>>;
  /** 0 to 1; left out is the server's default. */
  readonly importance?: number;
  /** When it happened; left out is the time of arrival. A `Timestamp` is exact to the nanosecond. */
  readonly eventTime?: Date | Timestamp;
  /** When it is to be forgotten; left out is never. */
  readonly expireTime?: Date | Timestamp;
  /** Ids of memories that this one replaces. */
  readonly supersedes?: readonly string[];
  /** An embedding of the namespace's dimension. */
  readonly embedding?: readonly number[];
}

/** What `ingest` and `createMemory` take: a bare string is a memory with that text. */
export type ItemLike = string | NewMemory | MemoryInput;

/**
 * Return an item as a message.
 *
 * @throws TypeError if it is no memory, or holds a value of none of the allowed types.
 */
export function toInput(item: ItemLike): MemoryInput {
  if (typeof item === "string") {
    return create(MemoryInputSchema, { text: item });
  }
  if (isMessage(item, MemoryInputSchema)) {
    return item;
  }
  if (typeof item?.text !== "string") {
    throw new TypeError("an item is a text, or an object with a text");
  }
  const { attributes, eventTime, expireTime, tags, supersedes, embedding, ...plain } = item;
  const made = create(MemoryInputSchema, plain);
  made.tags = [...(tags ?? [])];
  made.supersedes = [...(supersedes ?? [])];
  made.embedding = [...(embedding ?? [])];
  for (const [key, value] of Object.entries(attributes ?? {})) {
    made.attributes[key] = attributeOf(key, value);
  }
  if (eventTime !== undefined) {
    made.eventTime = timestampOf(eventTime);
  }
  if (expireTime !== undefined) {
    made.expireTime = timestampOf(expireTime);
  }
  return made;
}

function timestampOf(moment: Date | Timestamp): Timestamp {
  if (!(moment instanceof Date)) {
    return moment;
  }
  if (Number.isNaN(moment.getTime())) {
    throw new TypeError("a time is an invalid Date");
  }
  return timestampFromDate(moment);
}

function attributeOf(key: string, value: Attribute): AttributeValue {
  switch (typeof value) {
    case "string":
      return create(AttributeValueSchema, { value: { case: "stringValue", value } });
    case "boolean":
      return create(AttributeValueSchema, { value: { case: "boolValue", value } });
    case "bigint":
      if (BigInt.asIntN(64, value) !== value) {
        throw new TypeError(`attribute ${JSON.stringify(key)} does not fit in 64 bits`);
      }
      return create(AttributeValueSchema, { value: { case: "intValue", value } });
    case "number":
      return Number.isSafeInteger(value) && !Object.is(value, -0)
        ? create(AttributeValueSchema, { value: { case: "intValue", value: BigInt(value) } })
        : create(AttributeValueSchema, { value: { case: "doubleValue", value } });
    default:
      if (isMessage(value, AttributeValueSchema)) {
        return value;
      }
      if (Array.isArray(value) && value.every((one) => typeof one === "string")) {
        return create(AttributeValueSchema, { value: { case: "stringList", value: { values: value } } });
      }
      throw new TypeError(`attribute ${JSON.stringify(key)} has a value of no allowed type`);
  }
}

/** The fields of a `clag.v1.RetrieveRequest`, with the query as a text, an embedding, or both in an object. */
export interface RetrieveQuery extends Omit<Exclude<RetrieveInit, RetrieveRequest>, "query" | "$typeName"> {
  /** Where to look. */
  readonly namespace: string;
  /** What to look for. */
  readonly query: string | readonly number[] | NonNullable<RetrieveInit["query"]>;
}

type RetrieveInit = MessageInitShape<typeof RetrieveRequestSchema>;

/** Return the request of a retrieval; one that is a message already stays what it is. */
export function retrieveRequest(asked: RetrieveQuery | RetrieveRequest): RetrieveRequest {
  if (isMessage(asked, RetrieveRequestSchema)) {
    return asked;
  }
  const { query, ...rest } = asked;
  return create(RetrieveRequestSchema, { ...rest, query: queryOf(query) });
}

function queryOf(query: RetrieveQuery["query"]): NonNullable<RetrieveInit["query"]> {
  if (typeof query === "string") {
    return { text: query };
  }
  return Array.isArray(query)
    ? { embedding: [...(query as readonly number[])] }
    : (query as { text?: string });
}
