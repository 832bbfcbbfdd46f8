/**
 * When, and for how long, a broken stream is opened again.
 *
 * @module
 */

import { abortedBy, type ClagError, Code } from "./errors.js";
import { ErrorReason } from "./gen/clag/v1/types_pb.js";

/**
 * Retries with growing, jittered pauses, within a budget of time.
 *
 * The bound is a time and not a number of attempts: a server that restarts loads its models and checks its index,
 * 6 to 16 s on two cores, and how many attempts fit in there depends on the pauses.
 */
export interface RetryPolicy {
  /** Milliseconds to look for a server that went away before the error is raised. */
  readonly reconnectBudgetMs: number;
  /**
   * Milliseconds before the first retry, at most; each pause is a random part of its limit, so that many clients
   * of one server do not come back at the same moment.
   */
  readonly firstPauseMs: number;
  /** Limit, in milliseconds, of every pause but those that the server asks for. */
  readonly longestPauseMs: number;
}

/** The policy of clients that are given none. */
export const DEFAULT_RETRY: RetryPolicy = {
  reconnectBudgetMs: 120_000,
  firstPauseMs: 100,
  longestPauseMs: 5_000,
};

/** How time passes; tests have their own. */
export interface Clock {
  /** Monotonic milliseconds. */
  now(): number;
  /** Wait; ends early, and quietly, when the signal is aborted. */
  sleep(ms: number, signal: AbortSignal): Promise<void>;
}

const REAL_TIME: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      const woken = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", woken);
        resolve();
      };
      const timer = setTimeout(woken, ms);
      signal.addEventListener("abort", woken);
      if (signal.aborted) {
        woken();
      }
    }),
};

/** Failures in a row of one stream, and the waiting between them. */
export class Outage {
  readonly #policy: RetryPolicy;
  readonly #clock: Clock;
  #failures = 0;
  #sinceMs = 0;
  #connectedMs: number | undefined;

  constructor(policy: RetryPolicy, clock: Clock = REAL_TIME) {
    this.#policy = policy;
    this.#clock = clock;
  }

  /** Hear that a connection stands. */
  connected(): void {
    this.#connectedMs = this.#clock.now();
  }

  /**
   * Wait until the next attempt.
   *
   * @param error - what ended the connection, or the attempt at one.
   * @param forward - whether that connection brought the stream forward. One that did, or that stood for longer
   *   than the longest pause (a stream may have nothing to do for hours), ends the outage before it.
   * @param signal - ends the waiting.
   * @throws ClagError the error, when trying again is of no use or the budget is used up.
   */
  async wait(error: ClagError, forward: boolean, signal: AbortSignal): Promise<void> {
    const now = this.#clock.now();
    const stood = this.#connectedMs === undefined ? 0 : now - this.#connectedMs;
    this.#connectedMs = undefined;
    if (forward || stood > this.#policy.longestPauseMs || this.#failures === 0) {
      this.#failures = 0;
      this.#sinceMs = now;
    }
    this.#failures += 1;
    const pause = this.#pauseMs(error);
    if (pause === undefined || now - this.#sinceMs + pause > this.#policy.reconnectBudgetMs) {
      throw error;
    }
    await this.#clock.sleep(pause, signal);
    if (signal.aborted) {
      throw abortedBy(signal);
    }
  }

  #pauseMs(error: ClagError): number | undefined {
    if (error.reason === ErrorReason.STREAM_FENCED) {
      return undefined; // a newer opener has it: fighting for it would fence that one
    }
    if (error.retryAfterMs !== undefined) {
      return error.retryAfterMs * (1 + 0.2 * Math.random());
    }
    if (error.code !== Code.Unavailable) {
      return undefined;
    }
    // The exponent is bounded because long outages have thousands of failures, and numbers an end.
    const grown = this.#policy.firstPauseMs * 2 ** Math.min(this.#failures - 1, 32);
    return Math.min(this.#policy.longestPauseMs, grown) * (0.5 + 0.5 * Math.random());
  }
}
