/**
 * The loop of an agent with a memory: perceive, remember, ask, act. Needs a running server (`clag serve`).
 *
 * node build/examples/agent-loop.js [SOCKET or HOST:PORT]
 */

import { homedir } from "node:os";

import { AckLevel, ClagClient, ClagError, type NewMemory } from "@clag/client";

const NAMESPACE = "agent-loop";
const PERCEIVED = [
  { speaker: "camera", text: "The red pallet stands across aisle 7." },
  {
    speaker: "Mira",
    text: "Please keep the fire door on the north side free, the inspector comes on Friday.",
  },
  { speaker: "battery", text: "soc=18% at 14:02, falling faster than yesterday" },
];
const QUESTIONS = [
  "What blocks the way?",
  "Which door matters for the inspection?",
  "Do I have to charge soon?",
];

/** What the agent sees and hears; in a robot this comes from its sensors and never ends. */
async function* perceive(): AsyncGenerator<NewMemory> {
  for (const seen of PERCEIVED) {
    yield { ...seen, sessionId: "today", eventTime: new Date() };
  }
}

/** Remember everything that is perceived, then ask before acting. */
async function main(target: string): Promise<void> {
  using client = new ClagClient(target);
  for await (const outcome of client.ingest(NAMESPACE, perceive(), { ackLevel: AckLevel.SEARCHABLE })) {
    // First when it is on disk, then when it is found by meaning.
    console.log(`${outcome.memoryId}: ${AckLevel[outcome.level]}`);
  }
  for (const question of QUESTIONS) {
    const query = { namespace: NAMESPACE, query: question, contextTokens: 200, maxMemories: 3 };
    const answer = await client.getContext(query);
    console.log(`\n${question}\n${answer.context?.text}`); // ready to go into the prompt of the agent's model
  }
}

const runtime = process.env.XDG_RUNTIME_DIR;
const socket = runtime ? `${runtime}/clag/clag.sock` : `${homedir()}/.clag/clag.sock`;
main(process.argv[2] ?? socket).catch((error: unknown) => {
  if (!(error instanceof ClagError)) {
    throw error;
  }
  console.error(`agent-loop: ${error.message}; is \`clag serve\` running?`);
  process.exitCode = 1;
});
