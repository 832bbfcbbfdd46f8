/**
 * The conformance runner: one JSON object a line in, one a line out. See `tests/conformance/README.md`.
 *
 * @module
 */

import { createInterface } from "node:readline";

import { errorOf } from "./encode.js";
import { type Command, Runner } from "./runner.js";

const send = (message: object) => process.stdout.write(`${JSON.stringify(message)}\n`);
const features = ["tls", "unix", "surrogates", "unknown_fields"];
send({ hello: { language: "typescript", client: "0.1.0", features } });

const runner = new Runner(send);
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line) as Command;
  runner.run(command).then(
    (ok) => send({ id: command.id, ok }),
    (error: unknown) => send({ id: command.id, error: errorOf(error) }),
  );
}
runner.close();
