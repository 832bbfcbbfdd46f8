/**
 * The one connection of a client, opened at the first call and again when it was lost.
 *
 * @module
 */

import {
  type ClientHttp2Stream,
  type ClientSessionOptions,
  constants,
  type SecureClientSessionOptions,
} from "node:http2";

import { Http2SessionManager, type Http2SessionOptions } from "@connectrpc/connect-node";

import { Statuses } from "./statuses.js";

/**
 * Bytes in flight to us on a stream. Node's own 64 KiB is less than one answer may hold.
 */
const WINDOW_BYTES = 1024 * 1024;
/**
 * Megabytes that Node counts for a connection before it refuses what comes. Its count does not always go down again
 * when a stream ends while we write to it, and the default of 10 was reached by a dozen broken streams.
 */
const SESSION_MEGABYTES = 1_000;

type SessionOptions = ClientSessionOptions | SecureClientSessionOptions;

/**
 * Manages connections to one address.
 *
 * A connection on which calls are refused (ENHANCE_YOUR_CALM, by the server or by Node itself) serves the calls that
 * it has; the next ones get another.
 */
export class Session {
  /** The origin that requests must have. */
  readonly authority: string;
  /** How the calls over it ended. */
  readonly statuses = new Statuses();
  readonly #make: () => Http2SessionManager;
  #current: Http2SessionManager;
  #retired: Http2SessionManager[] = [];

  /**
   * @param authority - origin of the server.
   * @param pings - when the connection is looked at.
   * @param options - of Node's.
   */
  constructor(authority: string, pings: Http2SessionOptions, options: SessionOptions) {
    const all = {
      ...options,
      maxSessionMemory: SESSION_MEGABYTES,
      settings: { initialWindowSize: WINDOW_BYTES },
    };
    this.#make = () => new Http2SessionManager(authority, pings, all);
    this.#current = this.#make();
    this.authority = this.#current.authority;
  }

  /** Open a stream; connects where need be. */
  async request(...args: Parameters<Http2SessionManager["request"]>): Promise<ClientHttp2Stream> {
    const manager = this.#current;
    const listen = this.statuses.follow(args[2]);
    const stream = await manager.request(...args);
    listen(stream);
    stream.once("close", () => {
      if (stream.rstCode === constants.NGHTTP2_ENHANCE_YOUR_CALM && manager === this.#current) {
        this.#retired = this.#retired.filter((one) => one.state() === "open").concat(manager);
        this.#current = this.#make();
        stream.session?.close();
      }
    });
    return stream;
  }

  /** Hear that something came. */
  notifyResponseByteRead(stream: ClientHttp2Stream): void {
    for (const manager of [this.#current, ...this.#retired]) {
      manager.notifyResponseByteRead(stream);
    }
  }

  /** Close what is open. */
  abort(): void {
    for (const manager of [this.#current, ...this.#retired]) {
      manager.abort();
    }
  }
}
