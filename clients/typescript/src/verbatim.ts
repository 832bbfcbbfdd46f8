/**
 * Texts come back as they were stored.
 *
 * The decoder of `@bufbuild/protobuf` takes a byte order mark (U+FEFF) at the beginning of a string for an encoding
 * hint and drops it, where the specification of protobuf has it as a character like any other. The decoder is one for
 * the whole process, and replaced only where it has this fault.
 *
 * @module
 */

import { configureTextEncoding, getTextEncoding } from "@bufbuild/protobuf/wire";

const BYTE_ORDER_MARK = new Uint8Array([0xef, 0xbb, 0xbf]);

/** Have the decoder keep byte order marks. */
export function keepByteOrderMarks(): void {
  const given = getTextEncoding();
  if (given.decodeUtf8(BYTE_ORDER_MARK) === "\ufeff") {
    return;
  }
  const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
  const strict = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });
  configureTextEncoding({
    ...given,
    decodeUtf8: (bytes: Uint8Array, fatal?: boolean) => (fatal ? strict : lenient).decode(bytes),
  });
}
