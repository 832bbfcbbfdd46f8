/**
 * Waiting for a state to change, and a queue that holds its writers back; everything runs on one thread.
 *
 * @module
 */

/** Wakes whoever waits for a condition to come true. */
export class Changed {
  #waiting: (() => void)[] = [];

  /** Have all conditions looked at again. */
  notify(): void {
    const woken = this.#waiting;
    this.#waiting = [];
    for (const wake of woken) {
      wake();
    }
  }

  /** Wait until a condition holds; at once when it does already. */
  async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}

/** A queue with an end, of bounded length until it is released. */
export class BoundedQueue<T> {
  readonly #changed = new Changed();
  #items: T[] = [];
  #first = 0;
  #limit: number;
  #ended: { readonly failure: Error | undefined } | undefined;

  /** @param limit - items that are held before `put` waits. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Add an item; waits for room. */
  async put(item: T): Promise<void> {
    if (this.#length >= this.#limit) {
      await this.#changed.until(() => this.#length < this.#limit);
    }
    this.#items.push(item);
    this.#changed.notify();
  }

  /** Say that nothing follows, or why. */
  end(failure: Error | undefined): void {
    this.#ended ??= { failure };
    this.#changed.notify();
  }

  /** Hold no writer back any more. */
  release(): void {
    this.#limit = Number.POSITIVE_INFINITY;
    this.#changed.notify();
  }

  /** Take the oldest item; undefined at the end. Throws, once, the failure that ended the queue. */
  async take(): Promise<T | undefined> {
    await this.#changed.until(() => this.#length > 0 || this.#ended !== undefined);
    if (this.#length === 0) {
      const failure = this.#ended?.failure;
      this.#ended = { failure: undefined };
      if (failure !== undefined) {
        throw failure;
      }
      return undefined;
    }
    const item = this.#items[this.#first++] as T;
    if (this.#first === this.#items.length) {
      this.#items = [];
      this.#first = 0;
    } else if (this.#first >= 1024) {
      this.#items.splice(0, this.#first);
      this.#first = 0;
    }
    this.#changed.notify();
    return item;
  }

  get #length(): number {
    return this.#items.length - this.#first;
  }
}
