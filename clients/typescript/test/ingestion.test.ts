import assert from "node:assert/strict";
import { test } from "node:test";

import {
  ClagClient,
  ClagError,
  Code,
  Disposition,
  ErrorReason,
  type Outcome,
  SourceError,
} from "../src/index.js";
import { AckLevel } from "../src/v1.js";
import { Double, Event } from "./double.js";

const texts = (count: number, from = 1) => Array.from({ length: count }, (_, at) => `note ${from + at}`);

async function all(outcomes: AsyncIterable<Outcome>): Promise<Outcome[]> {
  const heard: Outcome[] = [];
  for await (const outcome of outcomes) {
    heard.push(outcome);
  }
  return heard;
}

test("every item is stored once, in order, and gets an outcome", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  const ingestion = client.ingest("n", texts(500), { streamId: "s" });
  const outcomes = await all(ingestion);
  assert.deepEqual(server.stored.get("s"), texts(500));
  assert.deepEqual(
    outcomes.map(({ seq, memoryId, final }) => ({ seq, memoryId, final })),
    texts(500).map((_, at) => ({ seq: at + 1, memoryId: `m${at + 1}`, final: true })),
  );
  assert.equal(ingestion.totals?.created, 500n);
  assert.equal(ingestion.durableThrough, 500);
});

test("items travel in frames of at most sixty-four", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  await client.ingest("n", texts(300)).wait();
  assert.deepEqual(server.frames, [64, 64, 64, 64, 44]);
});

test("frames stay below a mebibyte", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  const large = "é".repeat(16_000);
  await client.ingest("n", Array(64).fill(large)).wait();
  assert.deepEqual(server.frames, [32, 32]);
});

for (const lag of [0, 3]) {
  test(`a window of ten items is respected when ${lag} of them stay unacknowledged`, async () => {
    await using server = await new Double().start();
    server.window = 10;
    server.lag = lag;
    using client = new ClagClient(server.path);
    await client.ingest("n", texts(95), { streamId: "s" }).wait();
    assert.deepEqual(server.stored.get("s"), texts(95));
  });
}

test("a consumer that reads nothing stops the source", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  let given = 0;
  async function* endless() {
    for (;;) {
      given += 1;
      yield `note ${given}`;
      if (given % 100 === 0) {
        await new Promise(setImmediate);
      }
    }
  }
  const ingestion = client.ingest("n", endless());
  let before = -1;
  while (given !== before) {
    before = given;
    for (let turn = 0; turn < 500; turn++) {
      await new Promise(setImmediate);
    }
  }
  assert.ok(given < 4_000, `${given} items were taken`);
  assert.equal(ingestion.taken, given);
  await ingestion.close();
});

for (const cuts of [[1], [64, 65], [100, 200, 299], [300]]) {
  test(`connections that break at items ${cuts} are resumed without loss or doubles`, async () => {
    await using server = await new Double().start();
    for (const cut of cuts) {
      server.cutAfter.add(cut);
    }
    using client = new ClagClient(server.path);
    const ingestion = client.ingest("n", texts(300), { streamId: "s" });
    const outcomes = await all(ingestion);
    assert.deepEqual(server.stored.get("s"), texts(300));
    assert.equal(ingestion.reconnects, cuts.length);
    assert.equal(new Set(outcomes.filter(({ final }) => final).map(({ seq }) => seq)).size, 300);
  });
}

test("a server that restarts is found again", async () => {
  await using server = await new Double().start();
  const half = new Event();
  async function* notes() {
    yield* texts(50);
    await half.happened;
    yield* texts(50, 51);
  }
  using client = new ClagClient(server.path);
  const ingestion = client.ingest("n", notes(), { streamId: "s" });
  await server.received.happened;
  await server.kill();
  await server.start();
  half.set();
  await ingestion.wait();
  assert.deepEqual(server.stored.get("s"), texts(100));
  assert.ok(ingestion.reconnects >= 1);
});

test("running the same stream again sends only the rest", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  await client.ingest("n", texts(70), { streamId: "s" }).wait();
  const again = client.ingest("n", texts(100), { streamId: "s" });
  const outcomes = await all(again);
  assert.equal(again.resumedAt, 71);
  assert.deepEqual(outcomes.map(({ seq }) => seq)[0], 71);
  assert.deepEqual(server.stored.get("s"), texts(100));
});

test("an item of a live source is sent before the next one exists", async () => {
  await using server = await new Double().start();
  const heard = new Event();
  async function* live() {
    yield "first";
    await heard.happened;
    yield "second";
  }
  using client = new ClagClient(server.path);
  const ingestion = client.ingest("n", live());
  const { value } = await ingestion.next();
  assert.equal(value?.memoryId, "m1");
  heard.set();
  await ingestion.wait();
});

test("a fenced stream is not opened again", async () => {
  await using server = await new Double().start();
  server.fence = true;
  using client = new ClagClient(server.path);
  await assert.rejects(client.ingest("n", texts(1)).wait(), (error) => {
    assert.ok(error instanceof ClagError);
    assert.equal(error.reason, ErrorReason.STREAM_FENCED);
    return true;
  });
  assert.equal(server.opens, 1);
});

test("a server that was never there is reported at once, and the source is not touched", async () => {
  using client = new ClagClient("unix:/nowhere/clag.sock");
  let touched = false;
  function* notes() {
    touched = true;
    yield "note";
  }
  await assert.rejects(client.ingest("n", notes()).wait(), { code: Code.Unavailable });
  assert.equal(touched, false);
});

test("a server that stays away is given up when the budget is used up", async () => {
  await using server = await new Double().start();
  const never = new Event();
  async function* notes() {
    yield "note";
    await never.happened;
  }
  using client = new ClagClient(server.path, { retry: { reconnectBudgetMs: 200, firstPauseMs: 10 } });
  const ingestion = client.ingest("n", notes());
  await server.received.happened;
  await server.kill();
  await assert.rejects(ingestion.wait(), { code: Code.Unavailable });
  await server.start();
});

test("a failing source is named by item, and what came before it is kept", async () => {
  await using server = await new Double().start();
  function* notes() {
    yield* texts(10);
    throw new RangeError("the sensor is gone");
  }
  using client = new ClagClient(server.path);
  await assert.rejects(client.ingest("n", notes(), { streamId: "s" }).wait(), (error) => {
    assert.ok(error instanceof SourceError);
    assert.equal(error.seq, 11);
    assert.ok(error.cause instanceof RangeError);
    return true;
  });
  assert.deepEqual(server.stored.get("s"), texts(10));
});

test("an item with a lone surrogate is refused by its number, and what came before it is kept", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  const notes = ["well", { text: "formed", tags: ["a", "\ud800"] }, "never sent"];
  await assert.rejects(client.ingest("n", notes, { streamId: "s" }).wait(), (error) => {
    assert.ok(error instanceof SourceError && error.cause instanceof ClagError);
    assert.equal(error.seq, 2);
    assert.deepEqual(
      error.cause.violations.map(({ field }) => field),
      ["tags[1]"],
    );
    return true;
  });
  assert.deepEqual(server.stored.get("s"), ["well"]);
});

test("a text is no source of items", () => {
  using client = new ClagClient("unix:/nowhere/clag.sock");
  assert.throws(() => client.ingest("n", "a note" as unknown as string[]), TypeError);
});

test("leaving the loop early ends the stream on the server and the source", async () => {
  await using server = await new Double().start();
  const finished = new Event();
  async function* endless() {
    try {
      for (let number = 1; ; number++) {
        yield `note ${number}`;
      }
    } finally {
      finished.set();
    }
  }
  using client = new ClagClient(server.path);
  for await (const outcome of client.ingest("n", endless())) {
    if (outcome.seq === 10) {
      break;
    }
  }
  await server.left.happened;
  await finished.happened;
});

test("aborting the signal ends the stream with CANCELLED, while it waits for its server too", async () => {
  await using server = await new Double().start();
  const never = new Event();
  async function* notes() {
    yield "note";
    await never.happened;
  }
  const controller = new AbortController();
  using client = new ClagClient(server.path);
  const ingestion = client.ingest("n", notes(), { signal: controller.signal });
  const waiting = assert.rejects(ingestion.wait(), { code: Code.Canceled });
  await server.received.happened;
  await server.kill();
  controller.abort();
  await waiting;
  await server.start();
});

test("outcomes below the level that was asked for are not final", async () => {
  await using server = await new Double().start();
  using client = new ClagClient(server.path);
  const outcomes = await all(client.ingest("n", texts(3), { ackLevel: AckLevel.SEARCHABLE }));
  assert.deepEqual(
    outcomes.map(({ final }) => final),
    [false, false, false],
  );
});

test("items lost sight of with a connection get a last outcome", async () => {
  await using server = await new Double().start();
  server.cutAfter.add(100);
  using client = new ClagClient(server.path);
  const outcomes = await all(client.ingest("n", texts(100), { ackLevel: AckLevel.ORGANIZED }));
  const lost = outcomes.filter(({ disposition }) => disposition === Disposition.UNSPECIFIED);
  assert.deepEqual(
    lost.map(({ seq, memoryId, final }) => [seq, memoryId, final]),
    texts(100).map((_, at) => [at + 1, at < 64 ? `m${at + 1}` : "", true]),
  );
});
