/** The datagram format of docs/protocol.md, as far as the browser's threads look into it: the engine (wasm) does the rest. */

export const VERSION = 1;
export const KIND_AUDIO = 1;
export const KIND_PROBE = 2;
export const KIND_PROBE_REPLY = 3;
export const MAX_DATAGRAM_BYTES = 1000;
export const PROBE_BYTES = 16;

/** Whether `bytes` are a well-formed probe or probe reply. */
export function isProbe(bytes: Uint8Array): boolean {
  return (
    bytes.length === PROBE_BYTES &&
    bytes[0] === VERSION &&
    (bytes[1] === KIND_PROBE || bytes[1] === KIND_PROBE_REPLY) &&
    bytes[2] === 0 &&
    bytes[3] === 0
  );
}

/** A probe. `timeNs` is the prober's clock. */
export function writeProbe(id: number, timeNs: bigint): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(PROBE_BYTES);
  const view = new DataView(bytes.buffer);
  bytes[0] = VERSION;
  bytes[1] = KIND_PROBE;
  view.setUint32(4, id, true);
  view.setBigUint64(8, timeNs, true);
  return bytes;
}

/** The `timeNs` of a probe or its reply. */
export function probeTimeNs(bytes: Uint8Array): bigint {
  return new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(8, true);
}
