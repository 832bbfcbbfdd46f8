/**
 * What an ingestion sends over one connection.
 *
 * @module
 */

import { setImmediate } from "node:timers/promises";

import { create } from "@bufbuild/protobuf";

import { type IngestOpen, type IngestRequest, IngestRequestSchema } from "./gen/clag/v1/memory_service_pb.js";
import { Linked } from "./linked.js";
import type { SendWindow } from "./window.js";

/** One connection of an ingestion. */
export class Connection extends Linked {
  /** Whether the server has said where to begin. */
  opened = false;
  /** Whether it is of no use any more. */
  over = false;
  /** Why we ended it ourselves. */
  failure: Error | undefined;
}

/**
 * Yield open, what the credit allows, oldest first, then finish. Ends quietly when the connection is over.
 *
 * @param opening - the first frame.
 * @param window - the items.
 * @param awaited - hears the numbers of sent items, and the ids that their memories were given.
 * @param connection - where it goes; ended with the source's failure, once all before it is durable.
 */
export async function* ingestRequests(
  opening: IngestOpen,
  window: SendWindow,
  awaited: Map<number, string>,
  connection: Connection,
): AsyncGenerator<IngestRequest> {
  const { changed } = window;
  yield create(IngestRequestSchema, { frame: { case: "open", value: opening } });
  await changed.until(() => connection.over || connection.opened);
  let following = window.durable + 1;
  for (;;) {
    const allSent = () => window.end !== undefined && following > window.last;
    await changed.until(() => connection.over || window.maySend(following) || allSent());
    if (window.partial(following)) {
      await setImmediate(); // a source that has more to give makes whole frames this way
    }
    if (connection.over) {
      return;
    }
    if (allSent()) {
      break;
    }
    const items = window.batch(following);
    if (items.length === 0) {
      continue; // the window has shrunk meanwhile
    }
    for (const [at, item] of items.entries()) {
      awaited.set(following + at, item.memoryId);
    }
    const value = { firstSeq: BigInt(following), items };
    yield create(IngestRequestSchema, { frame: { case: "batch", value } });
    following += items.length;
  }
  await changed.until(() => connection.over || window.durable >= following - 1);
  if (connection.over) {
    return;
  }
  if (window.end?.failure !== undefined) {
    connection.failure = window.end.failure;
    connection.abort();
    return;
  }
  yield create(IngestRequestSchema, { frame: { case: "finish", value: { lastSeq: BigInt(following - 1) } } });
}
