/**
 * Calls that answer in a stream: left early, they are cancelled on the server.
 *
 * @module
 */

import { clone } from "@bufbuild/protobuf";
import type { CallOptions, Client } from "@connectrpc/connect";

import { ClagError, Code, failureOf } from "./errors.js";
import {
  type MemoryService,
  type WatchRequest,
  WatchRequestSchema,
  type WatchResponse,
} from "./gen/clag/v1/memory_service_pb.js";
import { Linked } from "./linked.js";
import type { Outage } from "./retry.js";

/**
 * Yield what a call answers; leaving the loop cancels the call.
 *
 * @param call - makes the call, given its options.
 * @param options - the caller's.
 */
export async function* cancelledWhenLeft<T>(
  call: (options: CallOptions) => AsyncIterable<T>,
  options: CallOptions,
): AsyncGenerator<T, void, undefined> {
  const linked = new Linked(options.signal);
  try {
    yield* call({ ...options, signal: linked.signal });
  } finally {
    linked.abort();
    linked.unlink();
  }
}

/**
 * Yield the changes of a namespace; a broken connection is opened again after the last response, so nothing is
 * missed or doubled.
 *
 * @throws ClagError if the watch cannot go on, e.g. because the log no longer reaches back that far.
 */
export async function* watchResponses(
  memory: Client<typeof MemoryService>,
  asked: WatchRequest,
  outage: Outage,
  options: CallOptions,
  closed: AbortSignal,
): AsyncGenerator<WatchResponse, void, undefined> {
  const request = clone(WatchRequestSchema, asked);
  const waiting = new Linked(closed, options.signal);
  let ever = false;
  try {
    for (;;) {
      let forward = false;
      let failure: ClagError;
      try {
        for await (const response of cancelledWhenLeft((linked) => memory.watch(request, linked), options)) {
          if (!forward) {
            outage.connected();
          }
          forward = true;
          ever = true;
          if (response.through !== undefined) {
            request.startAfter = response.through; // before it is handed out: whoever stops there has seen it
          }
          yield response;
        }
        failure = new ClagError("the server ended the watch", Code.Unavailable);
      } catch (error) {
        failure = failureOf(error);
        if (!ever && failure.retryAfterMs === undefined) {
          throw failure; // it was never there
        }
      }
      await outage.wait(failure, forward, waiting.signal);
    }
  } finally {
    waiting.unlink();
  }
}
