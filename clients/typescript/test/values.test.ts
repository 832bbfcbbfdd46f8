import assert from "node:assert/strict";
import { test } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";

import { measure } from "../src/measure.js";
import { AttributeValueSchema, FilterSchema, MemoryInputSchema, MemoryKind } from "../src/v1.js";
import { retrieveRequest, toInput } from "../src/values.js";

test("a memory becomes a message with typed attributes and exact times", () => {
  const made = toInput({
    text: "note",
    memoryId: "m",
    kind: MemoryKind.FACT,
    tags: ["a"],
    importance: 0.25,
    eventTime: new Date("1969-12-31T23:59:59.250Z"),
    expireTime: new Date("2030-01-01T00:00:00.001Z"),
    attributes: {
      text: "x",
      yes: true,
      whole: 3,
      half: 0.5,
      minus: -0,
      big: 2n ** 63n - 1n,
      list: ["a", "b"],
      own: create(AttributeValueSchema, { value: { case: "doubleValue", value: 3 } }),
    },
  });
  assert.equal(made.eventTime?.seconds, -1n);
  assert.equal(made.eventTime?.nanos, 250_000_000);
  assert.equal(made.expireTime?.nanos, 1_000_000);
  assert.equal(made.importance, 0.25);
  const attributes = Object.entries(made.attributes).map(([key, { value }]) => [key, value.case]);
  assert.deepEqual(Object.fromEntries(attributes), {
    text: "stringValue",
    yes: "boolValue",
    whole: "intValue",
    half: "doubleValue",
    minus: "doubleValue",
    big: "intValue",
    list: "stringList",
    own: "doubleValue",
  });
  assert.equal(toInput("note").text, "note");
  assert.equal(toInput(made), made);
});

test("what is no memory is refused", () => {
  for (const item of [null, 7, {}, { text: 7 }]) {
    assert.throws(() => toInput(item as never), TypeError);
  }
  assert.throws(() => toInput({ text: "note", eventTime: new Date("never") }), TypeError);
  assert.throws(() => toInput({ text: "note", attributes: { big: 2n ** 63n } }), TypeError);
  assert.throws(() => toInput({ text: "note", attributes: { wrong: { a: 1 } as never } }), TypeError);
});

test("a query is a text, an embedding or both", () => {
  assert.equal(retrieveRequest({ namespace: "n", query: "where?" }).query?.text, "where?");
  assert.deepEqual(retrieveRequest({ namespace: "n", query: [1, 2] }).query?.embedding, [1, 2]);
  const both = retrieveRequest({ namespace: "n", query: { text: "where?", embedding: [1] } });
  assert.deepEqual([both.query?.text, both.query?.embedding], ["where?", [1]]);
  assert.equal(retrieveRequest(both), both);
});

test("no message is larger on the wire than it was measured", () => {
  const items = [
    toInput(""),
    toInput("é".repeat(100)),
    toInput({
      text: "😀",
      tags: ["a", "b"],
      embedding: [1, 2, 3],
      importance: 1,
      attributes: { a: "é", b: ["c"] },
    }),
    toInput({
      text: "x",
      eventTime: new Date(0),
      supersedes: Array(16).fill("m".repeat(128)),
      kind: MemoryKind.ACTION,
    }),
  ];
  for (const item of items) {
    const bytes = toBinary(MemoryInputSchema, item).length;
    const most = measure(MemoryInputSchema, item);
    assert.ok(bytes <= most, `${bytes} bytes were measured as ${most}`);
  }
});

test("a lone surrogate is named by its path, however deep it is", () => {
  const filter = create(FilterSchema, {
    node: {
      case: "all",
      value: {
        filters: [
          {
            node: {
              case: "comparison",
              value: {
                target: { case: "attribute", value: "a" },
                operand: {
                  case: "value",
                  value: { value: { case: "stringList", value: { values: ["x", "\udc00"] } } },
                },
              },
            },
          },
        ],
      },
    },
  });
  assert.throws(() => measure(FilterSchema, filter), {
    violations: [
      {
        field: "all.filters[0].comparison.value.string_list.values[1]",
        description: "holds a lone surrogate, which has no UTF-8 form",
      },
    ],
  });
});
