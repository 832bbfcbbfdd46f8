/**
 * Signals that follow others. Unlike those of `AbortSignal.any` they can be let go of, so that a signal that lives as
 * long as the program does not gather a listener for each call.
 *
 * @module
 */

/** A controller that is aborted with any of its sources. */
export class Linked extends AbortController {
  #sources: AbortSignal[] = [];

  readonly #follow = (event: Event) => {
    this.abort((event.target as AbortSignal).reason);
  };

  constructor(...sources: (AbortSignal | undefined)[]) {
    super();
    for (const source of sources) {
      if (source?.aborted) {
        this.abort(source.reason);
      } else if (source !== undefined) {
        source.addEventListener("abort", this.#follow);
        this.#sources.push(source);
      }
    }
  }

  /** Let go of the sources. */
  unlink(): void {
    for (const source of this.#sources) {
      source.removeEventListener("abort", this.#follow);
    }
    this.#sources = [];
  }
}
