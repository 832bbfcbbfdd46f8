/**
 * Looks a message over before it is sent: how large it is at most, and whether all its texts have a UTF-8 form.
 *
 * Strings of JavaScript may hold lone surrogates. The encoder would put U+FFFD in their place without a word, and the
 * memory that is stored would not be the one that was handed in: they are refused here instead.
 *
 * @module
 */

import { type DescField, type DescMessage, type Message, ScalarType } from "@bufbuild/protobuf";

import { ClagError, Code } from "./errors.js";
import { ErrorReason } from "./gen/clag/v1/types_pb.js";

/** Tag and length of a field, 5 bytes each at most. */
const TAG_BYTES = 10;
/** A varint, the longest scalar. */
const SCALAR_BYTES = 10;

/** Returns the most bytes that a value can take; throws `IllFormed` for a text without a UTF-8 form. */
type Measure = (value: unknown, path: string) => number;

interface FieldPlan {
  /** Its name in the contract. */
  readonly name: string;
  /** Its name in the message, or as the case of its oneof. */
  readonly local: string;
  /** The name of its oneof in the message, if it is in one. */
  readonly oneof: string | undefined;
  readonly measure: Measure;
}

class IllFormed extends Error {
  readonly field: string;

  constructor(field: string) {
    super(field);
    this.field = field;
  }
}

const plans = new WeakMap<DescMessage, readonly FieldPlan[]>();

/**
 * Return the most bytes that a message can have on the wire.
 *
 * @throws ClagError (INVALID_ARGUMENT) naming the field, when a text in it has no UTF-8 form.
 */
export function measure(desc: DescMessage, message: Message): number {
  try {
    return messageBytes(desc, message, "");
  } catch (error) {
    if (!(error instanceof IllFormed)) {
      throw error;
    }
    const description = "holds a lone surrogate, which has no UTF-8 form";
    throw new ClagError(`${error.field} ${description}`, Code.InvalidArgument, {
      reason: ErrorReason.INVALID_FIELD,
      violations: [{ field: error.field, description }],
    });
  }
}

function messageBytes(desc: DescMessage, message: Message, path: string): number {
  const values = message as unknown as Record<string, unknown>;
  let bytes = 0;
  for (const plan of planOf(desc)) {
    const value = plan.oneof === undefined ? values[plan.local] : armOf(values[plan.oneof], plan.local);
    if (value !== undefined) {
      bytes += plan.measure(value, path === "" ? plan.name : `${path}.${plan.name}`);
    }
  }
  for (const { data } of message.$unknown ?? []) {
    bytes += TAG_BYTES + data.length;
  }
  return bytes;
}

function armOf(oneof: unknown, local: string): unknown {
  const set = oneof as { readonly case?: string; readonly value?: unknown } | undefined;
  return set?.case === local ? set.value : undefined;
}

function planOf(desc: DescMessage): readonly FieldPlan[] {
  let plan = plans.get(desc);
  if (plan === undefined) {
    plan = desc.fields.map((field) => ({
      name: field.name,
      local: field.localName,
      oneof: field.oneof?.localName,
      measure: measureOf(field),
    }));
    plans.set(desc, plan);
  }
  return plan;
}

function measureOf(field: DescField): Measure {
  switch (field.fieldKind) {
    case "list": {
      const one = valueMeasure(field.scalar, field.message);
      return one === undefined
        ? (list) => (list as unknown[]).length * (TAG_BYTES + SCALAR_BYTES)
        : (list, path) =>
            (list as unknown[]).reduce<number>((sum, value, at) => sum + one(value, `${path}[${at}]`), 0);
    }
    case "map": {
      const one = valueMeasure(field.scalar, field.message);
      return (map, path) => mapBytes(map as Record<string, unknown>, path, one);
    }
    default:
      return valueMeasure(field.scalar, field.message) ?? (() => TAG_BYTES + SCALAR_BYTES);
  }
}

/** How one value is measured; undefined for numbers, enums and truth values. */
function valueMeasure(scalar: ScalarType | undefined, message: DescMessage | undefined): Measure | undefined {
  if (message !== undefined) {
    return (value, path) => TAG_BYTES + messageBytes(message, value as Message, path);
  }
  if (scalar === ScalarType.STRING) {
    return (value, path) => TAG_BYTES + textBytes(value as string, path);
  }
  if (scalar === ScalarType.BYTES) {
    return (value) => TAG_BYTES + (value as Uint8Array).length;
  }
  return undefined;
}

function mapBytes(map: Record<string, unknown>, path: string, one: Measure | undefined): number {
  let bytes = 0;
  for (const [key, value] of Object.entries(map)) {
    const entry = `${path}[${JSON.stringify(key)}]`;
    bytes += TAG_BYTES + TAG_BYTES + textBytes(key, entry);
    bytes += one === undefined ? TAG_BYTES + SCALAR_BYTES : one(value, entry);
  }
  return bytes;
}

function textBytes(text: string, path: string): number {
  if (!text.isWellFormed()) {
    throw new IllFormed(path);
  }
  return Buffer.byteLength(text);
}
