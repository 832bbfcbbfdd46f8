/**
 * How to reach a server: a Unix socket or TCP, a bearer token, TLS.
 *
 * @module
 */

import type { SecureClientSessionOptions } from "node:http2";
import { connect, isIP } from "node:net";

import { ClagError, Code } from "./errors.js";
import { Session } from "./session.js";

/** Keys and certificates, in PEM. */
export interface Tls {
  /** Whom to trust; left out trusts what Node trusts. */
  readonly ca?: string | Buffer | undefined;
  /** Our own certificate, where the server asks for one. */
  readonly certificate?: string | Buffer | undefined;
  /** The key of our certificate. */
  readonly key?: string | Buffer | undefined;
  /** The name to expect in the server's certificate; left out expects the host's. */
  readonly serverName?: string | undefined;
}

/** Where a server is, taken apart. */
export interface Target {
  /** The path of a Unix socket, or undefined for TCP. */
  readonly path: string | undefined;
  /** The host of a TCP address, without brackets; empty for a Unix socket. */
  readonly host: string;
  /** The port of a TCP address; 0 for a Unix socket. */
  readonly port: number;
}

const PING_TIMEOUT_MS = 20_000;

/**
 * Take an address apart.
 *
 * @param target - `unix:PATH`, a path that begins with `/`, or `host:port`.
 * @throws ClagError when it is none of these. It is read strictly, so that the host that is looked at is the
 *   host that is connected to.
 */
export function parseTarget(target: string): Target {
  const path = target.startsWith("unix:") ? target.slice("unix:".length).replace(/^\/\/\//, "/") : target;
  if (path !== "" && (target.startsWith("unix:") || target.startsWith("/"))) {
    return { path, host: "", port: 0 };
  }
  const [, v6, name, port] = /^(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+)):([0-9]{1,5})$/.exec(target) ?? [];
  if ((v6 === undefined || isIP(v6) === 6) && port !== undefined && Number(port) < 65_536) {
    return { path: undefined, host: v6 ?? name ?? "", port: Number(port) };
  }
  const sentence = `the address ${JSON.stringify(target)} is none of unix:PATH, /PATH and host:port`;
  throw new ClagError(sentence, Code.InvalidArgument);
}

/**
 * Whether what is sent to a target stays on this machine: a Unix socket, `localhost` or a loopback address.
 *
 * Other names count as elsewhere, wherever they lead now: who answers for a name can change.
 */
export function isLocal({ path, host }: Target): boolean {
  if (path !== undefined || host.toLowerCase() === "localhost") {
    return true;
  }
  return isIP(host) === 4
    ? host.startsWith("127.")
    : isIP(host) === 6 && new URL(`http://[${host}]`).hostname === "[::1]";
}

/**
 * Return the headers that carry a bearer token; none for an empty one.
 *
 * @throws ClagError when the token would cross a network in plain text.
 */
export function headersFor(token: string, target: Target, tls: Tls | undefined): ReadonlyMap<string, string> {
  if (token === "") {
    return new Map();
  }
  if (tls === undefined && !isLocal(target)) {
    const sentence = `a token is not sent to ${target.host} in plain text: give \`tls\`, or use a loopback address`;
    throw new ClagError(sentence, Code.InvalidArgument);
  }
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new ClagError("a token holds visible ASCII characters only", Code.InvalidArgument);
  }
  return new Map([["authorization", `Bearer ${token}`]]);
}

/**
 * Make the one connection of a client; it is opened at the first call, and again when it was lost.
 *
 * @param target - where the server is.
 * @param tls - undefined speaks plain text, which servers accept on Unix sockets and loopback addresses.
 * @param keepaliveMs - milliseconds between pings while calls are open; 0 for none.
 */
export function sessionTo(target: Target, tls: Tls | undefined, keepaliveMs: number): Session {
  const { path, host, port } = target;
  if (path !== undefined && tls !== undefined) {
    throw new ClagError("a Unix socket is not spoken to over TLS", Code.InvalidArgument);
  }
  const pings = keepaliveMs > 0 ? { pingIntervalMs: keepaliveMs, pingTimeoutMs: PING_TIMEOUT_MS } : {};
  if (path !== undefined) {
    return new Session("http://localhost", pings, {
      createConnection: () => connect(path),
    });
  }
  const authority = `${host.includes(":") ? `[${host}]` : host}:${port}`;
  if (tls === undefined) {
    return new Session(`http://${authority}`, pings, {});
  }
  const secure: SecureClientSessionOptions = {};
  if (tls.ca !== undefined) {
    secure.ca = tls.ca;
  }
  if (tls.certificate !== undefined) {
    secure.cert = tls.certificate;
  }
  if (tls.key !== undefined) {
    secure.key = tls.key;
  }
  if (tls.serverName !== undefined) {
    secure.servername = tls.serverName;
  }
  return new Session(`https://${authority}`, pings, secure);
}
