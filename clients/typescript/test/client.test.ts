import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";

import { ClagClient, ClagError, Code, ErrorReason } from "../src/index.js";
import { AnswerDoneSchema, RetrieveDoneSchema } from "../src/v1.js";
import { Double, Event, failure } from "./double.js";

test("a failed call says code, reason, fields, facts and when to try again", async () => {
  await using server = await new Double().start({
    getMemory: () => {
      throw failure(Code.NotFound, ErrorReason.NOT_FOUND, 250, "memory_id");
    },
  });
  using client = new ClagClient(server.path);
  await assert.rejects(client.memory.getMemory({ namespace: "n", memoryId: "m" }), (error) => {
    assert.ok(error instanceof ClagError);
    assert.ok(error instanceof ConnectError, "who handles errors of Connect handles ours");
    assert.equal(error.code, Code.NotFound);
    assert.equal(error.reason, ErrorReason.NOT_FOUND);
    assert.equal(error.rawMessage, "no");
    assert.deepEqual(error.violations, [{ field: "memory_id", description: "is wrong" }]);
    assert.equal(error.retryAfterMs, 250);
    assert.deepEqual({ ...error.facts }, { a: "b" });
    return true;
  });
  assert.ok(!(new ConnectError("another's", Code.NotFound) instanceof ClagError));
});

test("a reason of a newer server is UNSPECIFIED", async () => {
  await using server = await new Double().start({
    getMemory: () => {
      throw failure(Code.NotFound, 9_999 as ErrorReason);
    },
  });
  using client = new ClagClient(server.path);
  await assert.rejects(client.memory.getMemory({}), { code: Code.NotFound, reason: ErrorReason.UNSPECIFIED });
});

test("a call ends at its deadline, at that of the client where it has none, and when its signal is aborted", async () => {
  const never = new Event();
  await using server = await new Double().start({
    getMemory: async () => {
      await never.happened;
      return {};
    },
  });
  using client = new ClagClient(server.path);
  using hasty = new ClagClient(server.path, { timeoutMs: 20 });
  await assert.rejects(client.memory.getMemory({}, { timeoutMs: 20 }), { code: Code.DeadlineExceeded });
  await assert.rejects(hasty.memory.getMemory({}), { code: Code.DeadlineExceeded });
  await assert.rejects(client.memory.getMemory({}, { signal: AbortSignal.timeout(20) }), {
    code: Code.DeadlineExceeded,
  });
  const controller = new AbortController();
  const cancelled = assert.rejects(client.memory.getMemory({}, { signal: controller.signal }), {
    name: "ConnectError",
    code: Code.Canceled,
  });
  controller.abort(new Error("enough"));
  await cancelled;
  const closed = assert.rejects(client.memory.getMemory({}), { code: Code.Canceled });
  client.close();
  await closed;
  await assert.rejects(client.memory.getMemory({}), { code: Code.Canceled });
  never.set();
});

test("stages come in order, and leaving a retrieval early cancels it on the server", async () => {
  const left = new Event();
  await using server = await new Double().start({
    async *retrieve(request, context) {
      yield { stage: { case: "context", value: { text: request.query?.text ?? "" } } };
      if (request.maxMemories === 1) {
        await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
        left.set();
      }
      yield { stage: { case: "done", value: create(RetrieveDoneSchema) } };
    },
  });
  using client = new ClagClient(server.path);
  const stages: unknown[] = [];
  for await (const { stage } of client.retrieve({ namespace: "n", query: "where?" })) {
    stages.push(stage.case);
  }
  assert.deepEqual(stages, ["context", "done"]);
  for await (const { stage } of client.retrieve({ namespace: "n", query: "where?", maxMemories: 1 })) {
    assert.ok(stage.case === "context" && stage.value.text === "where?");
    break;
  }
  await left.happened;
});

test("an answer comes in pieces", async () => {
  await using server = await new Double().start({
    async *answer({ retrieve, maxTokens }) {
      yield { frame: { case: "delta", value: { text: `${retrieve?.query?.text} ` } } };
      yield { frame: { case: "delta", value: { text: String(maxTokens) } } };
      yield { frame: { case: "done", value: create(AnswerDoneSchema) } };
    },
  });
  using client = new ClagClient(server.path);
  let text = "";
  for await (const { frame } of client.answer({ namespace: "n", query: "how many?", maxTokens: 3 })) {
    text += frame.case === "delta" ? frame.value.text : "";
  }
  assert.equal(text, "how many? 3");
});

test("a watch that breaks goes on after the last response, without gap or double", async () => {
  const resumed: string[] = [];
  await using server = await new Double().start({
    async *watch({ startAfter }) {
      resumed.push(startAfter?.token ?? "");
      const after = Number(startAfter?.token || "0");
      yield { through: { token: String(after + 1) }, checkpoint: true };
      yield { through: { token: String(after + 2) }, checkpoint: true };
      throw failure(Code.Unavailable, ErrorReason.DRAINING, 0);
    },
  });
  using client = new ClagClient(server.path);
  const seen: string[] = [];
  for await (const { through } of client.watch({ namespace: "n" })) {
    seen.push(through?.token ?? "");
    if (seen.length === 5) {
      break;
    }
  }
  assert.deepEqual(seen, ["1", "2", "3", "4", "5"]);
  assert.deepEqual(resumed, ["", "2", "4"]);
});

test("listing follows all pages", async () => {
  await using server = await new Double().start({
    listMemories: ({ pageToken, namespace }) => {
      const start = Number(pageToken || "0");
      const memories = [start, start + 1].map((number) => ({ memoryId: `${namespace}${number}` }));
      return { memories, nextPageToken: start < 4 ? String(start + 2) : "" };
    },
  });
  using client = new ClagClient(server.path);
  const ids: string[] = [];
  for await (const { memoryId } of client.listMemories({ namespace: "n" })) {
    ids.push(memoryId);
  }
  assert.deepEqual(ids, ["n0", "n1", "n2", "n3", "n4", "n5"]);
});

test("the token goes with every call", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path, { token: "secret" });
  await client.ingest("n", ["note"]).wait();
  assert.deepEqual(server.tokens, ["Bearer secret"]);
});

test("a text with a lone surrogate is refused before anything is sent", async () => {
  let calls = 0;
  await using server = await new Double().start({
    createMemory: () => {
      calls += 1;
      return {};
    },
  });
  using client = new ClagClient(server.path);
  for (const text of ["a\ud800b", "\udc00", "\udc00\ud800"]) {
    await assert.rejects(client.createMemory("n", text), (error) => {
      assert.ok(error instanceof ClagError);
      assert.equal(error.code, Code.InvalidArgument);
      assert.equal(error.reason, ErrorReason.INVALID_FIELD);
      assert.equal(error.violations[0]?.field, "memory.text");
      return true;
    });
  }
  const key = { text: "note", attributes: { "\ud83d": 1 } };
  await assert.rejects(client.createMemory("n", key), { code: Code.InvalidArgument });
  assert.equal(calls, 0);
  await client.createMemory("n", "a pair is one character: \ud83d\ude00");
  assert.equal(calls, 1);
});

test("texts come back with the byte order mark that they begin with", async () => {
  await using server = await new Double().start({
    getMemory: ({ memoryId }) => ({ memory: { text: memoryId } }),
  });
  using client = new ClagClient(server.path);
  const { memory } = await client.memory.getMemory({ namespace: "n", memoryId: "\ufeffnote" });
  assert.equal(memory?.text, "\ufeffnote");
});

test("messages of more than 4 MiB are refused in both directions", async () => {
  const limit = 4 * 1024 * 1024;
  await using server = await new Double().start({
    getMemory: ({ memoryId }) => ({ memory: { text: "x".repeat(Number(memoryId)) } }),
  });
  using client = new ClagClient(server.path);
  const whole = await client.memory.getMemory({ memoryId: String(limit - 100) });
  assert.equal(whole.memory?.text.length, limit - 100);
  await assert.rejects(client.memory.getMemory({ memoryId: String(limit) }), {
    code: Code.ResourceExhausted,
  });
  await assert.rejects(client.memory.getMemory({ memoryId: "1".repeat(limit) }), {
    code: Code.ResourceExhausted,
  });
});

test("a connection that refuses calls is replaced by another", async () => {
  await using server = await new Double().start({ getMemory: () => ({ memory: { text: "there" } }) });
  server.calmed = 1;
  using client = new ClagClient(server.path);
  await assert.rejects(client.memory.getMemory({}), { code: Code.Unavailable });
  const { memory } = await client.memory.getMemory({});
  assert.equal(memory?.text, "there");
  assert.equal(server.sessions, 2);
});
