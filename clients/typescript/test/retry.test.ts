import assert from "node:assert/strict";
import { test } from "node:test";

import { ClagError, Code, ErrorReason } from "../src/index.js";
import { DEFAULT_RETRY, Outage } from "../src/retry.js";

const away = new ClagError("away", Code.Unavailable);
const signal = new AbortController().signal;

/** A clock that stands still but for sleeping. */
class Clock {
  ms = 0;
  readonly slept: number[] = [];

  now(): number {
    return this.ms;
  }

  async sleep(ms: number): Promise<void> {
    this.ms += ms;
    this.slept.push(ms);
  }
}

async function exhaust(outage: Outage, error: ClagError): Promise<void> {
  for (;;) {
    await outage.wait(error, false, signal);
  }
}

test("a stream whose server stays away ends within the budget, after pauses that grow to the longest", async () => {
  const clock = new Clock();
  await assert.rejects(exhaust(new Outage(DEFAULT_RETRY, clock), away), away);
  assert.ok(clock.ms > 100_000 && clock.ms <= 120_000, `${clock.ms} ms`);
  for (const [at, ms] of clock.slept.entries()) {
    const limit = Math.min(5_000, 100 * 2 ** at);
    assert.ok(ms >= limit / 2 && ms <= limit, `pause ${at} was ${ms} ms`);
  }
});

test("a connection that brought the stream forward, or stood for long, renews the budget", async () => {
  for (const stood of [0, 3_600_000]) {
    const clock = new Clock();
    const outage = new Outage(DEFAULT_RETRY, clock);
    for (let round = 0; round < 3; round++) {
      for (let failures = 0; failures < 20; failures++) {
        await outage.wait(away, false, signal);
      }
      outage.connected();
      clock.ms += stood;
      await outage.wait(away, stood === 0, signal);
      assert.ok((clock.slept.at(-1) ?? 0) <= 100);
    }
  }
});

test("connections that break as soon as they stand use the budget up", async () => {
  const clock = new Clock();
  const outage = new Outage(DEFAULT_RETRY, clock);
  const flapping = async () => {
    for (;;) {
      outage.connected();
      await outage.wait(away, false, signal);
    }
  };
  await assert.rejects(flapping(), away);
});

test("the pause that a server asks for is kept if the budget has room for it", async () => {
  const clock = new Clock();
  const full = new ClagError("full", Code.ResourceExhausted, { retryAfterMs: 20_000 });
  await new Outage(DEFAULT_RETRY, clock).wait(full, false, signal);
  assert.ok(clock.ms >= 20_000 && clock.ms <= 24_000);
  const long = new ClagError("full", Code.ResourceExhausted, { retryAfterMs: 200_000 });
  await assert.rejects(new Outage(DEFAULT_RETRY, clock).wait(long, false, signal), long);
});

for (const error of [
  new ClagError("no", Code.InvalidArgument),
  new ClagError("fenced", Code.Aborted, { reason: ErrorReason.STREAM_FENCED, retryAfterMs: 1 }),
]) {
  test(`an error that trying again cannot mend is raised at once: ${error.message}`, async () => {
    const clock = new Clock();
    await assert.rejects(new Outage(DEFAULT_RETRY, clock).wait(error, true, signal), error);
    assert.deepEqual(clock.slept, []);
  });
}

test("a pause ends when the signal is aborted", async () => {
  const controller = new AbortController();
  const long = new ClagError("full", Code.ResourceExhausted, { retryAfterMs: 90_000 });
  const waiting = assert.rejects(new Outage(DEFAULT_RETRY).wait(long, false, controller.signal), {
    code: Code.Canceled,
  });
  controller.abort();
  await waiting;
});
