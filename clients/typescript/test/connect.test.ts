import assert from "node:assert/strict";
import { test } from "node:test";

import { isLocal, parseTarget } from "../src/connect.js";
import { ClagClient, ClagError, Code } from "../src/index.js";

test("addresses are Unix sockets by unix:PATH or an absolute path, or host:port", () => {
  assert.equal(parseTarget("unix:/run/clag.sock").path, "/run/clag.sock");
  assert.equal(parseTarget("unix:///run/clag.sock").path, "/run/clag.sock");
  assert.equal(parseTarget("unix:clag.sock").path, "clag.sock");
  assert.equal(parseTarget("/run/clag.sock").path, "/run/clag.sock");
  assert.deepEqual(parseTarget("host.example:7077"), { path: undefined, host: "host.example", port: 7077 });
  assert.deepEqual(parseTarget("[::1]:7077"), { path: undefined, host: "::1", port: 7077 });
});

for (const target of [
  "",
  "unix:",
  "host",
  "host:",
  ":7077",
  "host:70777",
  "::1:7077",
  "[nonsense]:1",
  "a@b:1",
]) {
  test(`${JSON.stringify(target)} is no address`, () => {
    assert.throws(() => new ClagClient(target), { code: Code.InvalidArgument });
  });
}

for (const target of [
  "10.0.0.1:1",
  "host.example:1",
  "localhost.example:1",
  "127.0.0.1.example:1",
  "[::2]:1",
  "0:1",
]) {
  test(`a token is not sent to ${target} in plain text`, () => {
    assert.equal(isLocal(parseTarget(target)), false);
    assert.throws(
      () => new ClagClient(target, { token: "secret" }),
      (error) =>
        error instanceof ClagError &&
        error.code === Code.InvalidArgument &&
        !error.message.includes("secret"),
    );
    new ClagClient(target, { token: "secret", tls: {} }).close();
  });
}

for (const target of [
  "unix:/s",
  "/s",
  "127.0.0.1:1",
  "127.9.9.9:1",
  "[::1]:1",
  "[0:0:0:0:0:0:0:1]:1",
  "LocalHost:1",
]) {
  test(`a token may go to ${target} in plain text`, () => {
    new ClagClient(target, { token: "secret" }).close();
  });
}

test("a token that is no header value is refused", () => {
  assert.throws(() => new ClagClient("/s", { token: "a\nb" }), { code: Code.InvalidArgument });
});

test("TLS over a Unix socket is refused", () => {
  assert.throws(() => new ClagClient("/s", { tls: {} }), { code: Code.InvalidArgument });
});
