/** The datagram format of docs/protocol.md, as far as the browser's threads look into it: the engine (wasm) does the rest. */

export const VERSION = 1;
export const KIND_AUDIO = 1;
export const KIND_PROBE = 2;
export const KIND_PROBE_REPLY = 3;
export const MAX_DATAGRAM_BYTES = 1000;
export const AUDIO_HEADER_BYTES = 20;
export const PROBE_BYTES = 16;
export const MAX_CHANNELS = 8;
export const MAX_PACKET_FRAMES = 512;
/** Format of an Opus datagram, in the low nibble of its encoding; below are the sample formats. Always at 48,000 Hz. */
const FORMAT_OPUS = 4;
export const MAX_OPUS_CHANNELS = 2;
export const OPUS_RATE_HZ = 48_000;
/** Frames of an Opus packet: 2.5, 5 or 10 ms. */
export const OPUS_FRAMES = [120, 240, 480] as const;
export type OpusFrames = (typeof OPUS_FRAMES)[number];
/** Longest record of a decoded Opus packet: its datagram's header, then f32 samples, interleaved. */
export const MAX_DECODED_BYTES = AUDIO_HEADER_BYTES + 480 * MAX_OPUS_CHANNELS * 4;
/** Sample rates in the order of their codes. */
export const RATES_HZ = [44_100, 48_000, 88_200, 96_000] as const;

/** Why a datagram is refused, as negative numbers, so that `kindOf` needs no allocation. Names as in the engine. */
export const MALFORMED = {
  oversized: -1,
  length: -2,
  version: -3,
  kind: -4,
  encoding: -5,
  channels: -6,
  frames: -7,
  reserved: -8,
} as const;

/**
 * The kind of a well-formed datagram, or one of `MALFORMED`: exactly what the engine's parser accepts and refuses.
 *
 * RT: no alloc, O(1).
 */
export function kindOf(bytes: Uint8Array): number {
  const length = bytes.length;
  if (length > MAX_DATAGRAM_BYTES) return MALFORMED.oversized;
  if (length < 2) return MALFORMED.length;
  if (bytes[0] !== VERSION) return MALFORMED.version;
  switch (bytes[1]) {
    case KIND_AUDIO:
      return checkAudio(bytes, length);
    case KIND_PROBE:
    case KIND_PROBE_REPLY:
      if (length !== PROBE_BYTES) return MALFORMED.length;
      return bytes[2] === 0 && bytes[3] === 0 ? bytes[1] : MALFORMED.reserved;
    default:
      return MALFORMED.kind;
  }
}

function checkAudio(bytes: Uint8Array, length: number): number {
  if (length < 4) return MALFORMED.length;
  const format = bytes[2]! & 0x0f;
  const channels = bytes[3]!;
  if (format === FORMAT_OPUS) return checkOpus(bytes, length);
  if (format < 1 || format > 3 || bytes[2]! >> 4 >= RATES_HZ.length) return MALFORMED.encoding;
  if (channels < 1 || channels > MAX_CHANNELS) return MALFORMED.channels;
  if (length < 8) return MALFORMED.length;
  const frames = bytes[6]! | (bytes[7]! << 8);
  if (frames < 1 || frames > MAX_PACKET_FRAMES) return MALFORMED.frames;
  return length === AUDIO_HEADER_BYTES + frames * channels * (format + 1) ? KIND_AUDIO : MALFORMED.length;
}

function checkOpus(bytes: Uint8Array, length: number): number {
  if (bytes[2] !== OPUS_ENCODING) return MALFORMED.encoding;
  if (bytes[3]! < 1 || bytes[3]! > MAX_OPUS_CHANNELS) return MALFORMED.channels;
  if (length < 8) return MALFORMED.length;
  const frames = bytes[6]! | (bytes[7]! << 8);
  if (frames !== 120 && frames !== 240 && frames !== 480) return MALFORMED.frames;
  return length > AUDIO_HEADER_BYTES ? KIND_AUDIO : MALFORMED.length;
}

/** Format and rate of every Opus datagram. */
const OPUS_ENCODING = FORMAT_OPUS | (1 << 4);

/** Whether a datagram that `kindOf` calls `KIND_AUDIO` carries an Opus packet. */
export function isOpus(bytes: Uint8Array): boolean {
  return bytes[2] === OPUS_ENCODING;
}

export interface AudioHeader {
  /** Null of Opus. */
  bits: 16 | 24 | 32 | null;
  rateHz: (typeof RATES_HZ)[number];
  channels: number;
  stream: number;
  frames: number;
  sequence: number;
  timestamp: bigint;
}

const view = (bytes: Uint8Array) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** The header of a datagram that `kindOf` calls `KIND_AUDIO`. */
export function readAudioHeader(bytes: Uint8Array): AudioHeader {
  const fields = view(bytes);
  const encoding = fields.getUint8(2);
  return {
    bits: isOpus(bytes) ? null : ((((encoding & 0x0f) + 1) * 8) as AudioHeader["bits"]),
    rateHz: RATES_HZ[encoding >> 4]!,
    channels: fields.getUint8(3),
    stream: fields.getUint16(4, true),
    frames: fields.getUint16(6, true),
    sequence: fields.getUint32(8, true),
    timestamp: fields.getBigUint64(12, true),
  };
}

/** An Opus datagram, its sequence number still to be written. `timestamp`: media time of the first frame it decodes to. */
export function writeOpus(
  channels: number,
  frames: OpusFrames,
  timestamp: bigint,
  packetBytes: number,
): { datagram: Uint8Array<ArrayBuffer>; packet: Uint8Array<ArrayBuffer> } {
  const datagram = new Uint8Array(AUDIO_HEADER_BYTES + packetBytes);
  datagram.set([VERSION, KIND_AUDIO, OPUS_ENCODING, channels]);
  const fields = view(datagram);
  fields.setUint16(6, frames, true);
  fields.setBigUint64(12, timestamp, true);
  return { datagram, packet: datagram.subarray(AUDIO_HEADER_BYTES) };
}

/** Each listener's datagrams are counted on their own: the number is written when one is sent. */
export function writeSequence(audio: Uint8Array, sequence: number): void {
  audio[8] = sequence;
  audio[9] = sequence >>> 8;
  audio[10] = sequence >>> 16;
  audio[11] = sequence >>> 24;
}

/** Whether `bytes` are a well-formed probe or probe reply. */
export function isProbe(bytes: Uint8Array): boolean {
  return kindOf(bytes) >= KIND_PROBE;
}

/** A probe. `timeNs` is the prober's clock. */
export function writeProbe(id: number, timeNs: bigint): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(PROBE_BYTES);
  const fields = view(bytes);
  bytes[0] = VERSION;
  bytes[1] = KIND_PROBE;
  fields.setUint32(4, id, true);
  fields.setBigUint64(8, timeNs, true);
  return bytes;
}

/** The reply to a probe. */
export function probeReply(probe: Uint8Array): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(probe);
  bytes[1] = KIND_PROBE_REPLY;
  return bytes;
}

/** The `id` of a probe or its reply. */
export function probeId(bytes: Uint8Array): number {
  return view(bytes).getUint32(4, true);
}

/** The `timeNs` of a probe or its reply. */
export function probeTimeNs(bytes: Uint8Array): bigint {
  return view(bytes).getBigUint64(8, true);
}
