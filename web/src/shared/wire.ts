/** The datagram format of docs/protocol.md, as far as the browser's threads look into it: the engine (wasm) does the rest. */

export const VERSION = 1;
export const KIND_AUDIO = 1;
export const KIND_PROBE = 2;
export const KIND_PROBE_REPLY = 3;
export const KIND_REPORT = 4;
/** Stream number of a mix. */
export const MIX_STREAM = 65_535;
export const MAX_DATAGRAM_BYTES = 1000;
export const AUDIO_HEADER_BYTES = 20;
export const PROBE_BYTES = 24;
export const REPORT_BYTES = 92;
/** Longest duration in a report: what takes longer is no live music. */
export const MAX_REPORT_US = 60_000_000;
/** Longest time that a report's counts may cover. */
export const MAX_PERIOD_MS = 60_000;
export const MAX_CHANNELS = 8;
export const MAX_PACKET_FRAMES = 512;
/** Bytes before the codes of each channel of a copy. */
const COPY_HEAD_BYTES = 3;
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
  range: -9,
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
      return bytes[1] === KIND_PROBE && !isZero(bytes, 16, 24) ? MALFORMED.reserved : bytes[1];
    case KIND_REPORT:
      return length === REPORT_BYTES ? checkReport(bytes) : MALFORMED.length;
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
  const rest = length - bytesWithoutCopy(bytes);
  const copyBytes = channels * (COPY_HEAD_BYTES + (frames >> 1));
  return rest === 0 || rest === copyBytes ? KIND_AUDIO : MALFORMED.length;
}

/** Bytes of a datagram of samples, but for the copy it may carry of the one before. */
function bytesWithoutCopy(bytes: Uint8Array): number {
  const frames = bytes[6]! | (bytes[7]! << 8);
  return AUDIO_HEADER_BYTES + frames * bytes[3]! * ((bytes[2]! & 0x0f) + 1);
}

/** A datagram that `kindOf` calls `KIND_AUDIO`, without the copy that it may carry of the one before. */
export function withoutCopy(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const length = isOpus(bytes) ? bytes.length : bytesWithoutCopy(bytes);
  return length === bytes.length ? bytes : bytes.subarray(0, length);
}

function checkOpus(bytes: Uint8Array, length: number): number {
  if (bytes[2] !== OPUS_ENCODING) return MALFORMED.encoding;
  if (bytes[3]! < 1 || bytes[3]! > MAX_OPUS_CHANNELS) return MALFORMED.channels;
  if (length < 8) return MALFORMED.length;
  const frames = bytes[6]! | (bytes[7]! << 8);
  if (frames !== 120 && frames !== 240 && frames !== 480) return MALFORMED.frames;
  return length > AUDIO_HEADER_BYTES ? KIND_AUDIO : MALFORMED.length;
}

/** Where a well-formed datagram holds its stream number. */
function streamAt(bytes: Uint8Array): number {
  if (bytes[1] === KIND_AUDIO) return 4;
  return bytes[1] === KIND_REPORT ? 54 : 2;
}

/** The stream number of a datagram of any kind that `kindOf` accepts: 0 on a direct lane. RT: no alloc, O(1). */
export function streamOf(bytes: Uint8Array): number {
  const at = streamAt(bytes);
  return bytes[at]! | (bytes[at + 1]! << 8);
}

/** Writes the stream number into a datagram of any kind that `kindOf` accepts. RT: no alloc, O(1). */
export function writeStream(bytes: Uint8Array, stream: number): void {
  const at = streamAt(bytes);
  bytes[at] = stream;
  bytes[at + 1] = stream >>> 8;
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

/** A probe of a direct lane. `timeNs` is the prober's clock. */
export function writeProbe(id: number, timeNs: bigint): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(PROBE_BYTES);
  const fields = view(bytes);
  bytes[0] = VERSION;
  bytes[1] = KIND_PROBE;
  fields.setUint32(4, id, true);
  fields.setBigUint64(8, timeNs, true);
  return bytes;
}

/** The reply to a probe. `timeNs` is the replier's clock. */
export function probeReply(probe: Uint8Array, timeNs: bigint): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(probe);
  bytes[1] = KIND_PROBE_REPLY;
  view(bytes).setBigUint64(16, timeNs, true);
  return bytes;
}

/** The `id` of a probe or its reply. */
export function probeId(bytes: Uint8Array): number {
  return view(bytes).getUint32(4, true);
}

/** The prober's clock in a probe or its reply, ns. */
export function probeTimeNs(bytes: Uint8Array): bigint {
  return view(bytes).getBigUint64(8, true);
}

/** The replier's clock in a reply, ns. */
export function probeRepliedNs(bytes: Uint8Array): bigint {
  return view(bytes).getBigUint64(16, true);
}

/** What one end tells the other, twice a second. Meanings and ranges: docs/protocol.md, "Kind 4". */
export interface Report {
  /** Counts the reports to this peer; wraps. */
  id: number;
  capture: CaptureReport | null;
  heard: HeardReport | null;
}

/** The clock of a capture: one frame of it, and how long frames take from there to the network. */
export interface CaptureReport {
  /** Media time of the frame. */
  timestamp: bigint;
  /** When it was captured as far as the host knows, on the clock of its probes and replies. */
  timeNs: bigint;
  errorUs: number;
  /** From the capture of a block's first frame until the engine has the block. */
  blockUs: number;
  /** From the capture of a datagram's first frame until it is handed to a lane. */
  sendUs: number;
  /** What the input takes before the instant that `timeNs` names; null: unknown. */
  input: InputDelay | null;
  /** Captured frames lost at the sender within the last seconds. */
  overrunFrames: number;
  /** Datagrams to this peer dropped within the last seconds, because every lane had a backlog. */
  droppedPackets: number;
}

/** Delay of a sound input beyond what its timestamps say. */
export interface InputDelay {
  /** True: measured by a loop-back. False: the browser's own word. */
  isCalibrated: boolean;
  delayUs: number;
  errorUs: number;
}

/** How a stream is heard: counts of the last seconds, and the jitter buffer now. */
export interface HeardReport {
  /** It is heard in the server's mix. Then `concealedFrames` are the mix's and those that the mixer made up of the stream itself, and all else is the mix's. */
  isMixed: boolean;
  /** What the counts cover. */
  periodMs: number;
  receivedPackets: number;
  /** Sequence numbers of which no copy came. */
  lostPackets: number;
  latePackets: number;
  playedFrames: number;
  concealedFrames: number;
  bufferFrames: number | null;
  targetFrames: number;
  spreadFrames: number | null;
  /** Times the listener's own output ran dry; null where its browser does not tell. */
  outputUnderruns: number | null;
}

const CAPTURE_KNOWN = 1;
const HEARD_KNOWN = 2;
/** Only with `HEARD_KNOWN`. */
const HEARD_MIXED = 4;
const INPUT_REPORTED = 1;
const INPUT_CALIBRATED = 2;
/** An optional count that is not known. */
const UNKNOWN = 0xffffffff;

function isZero(bytes: Uint8Array, from: number, to: number): boolean {
  for (let at = from; at < to; at++) if (bytes[at] !== 0) return false;
  return true;
}

function checkReport(bytes: Uint8Array): number {
  const [known, source] = [bytes[2]!, bytes[3]!];
  const hasCapture = (known & CAPTURE_KNOWN) !== 0;
  const hasHeard = (known & HEARD_KNOWN) !== 0;
  const isTidy =
    known <= (CAPTURE_KNOWN | HEARD_KNOWN | HEARD_MIXED) &&
    (hasHeard || (known & HEARD_MIXED) === 0) &&
    source <= INPUT_CALIBRATED &&
    (source !== 0 || isZero(bytes, 36, 44)) &&
    (hasCapture || (source === 0 && isZero(bytes, 8, 52))) &&
    (hasHeard || (isZero(bytes, 52, 54) && isZero(bytes, 56, REPORT_BYTES)));
  if (!isTidy) return MALFORMED.reserved;
  const fields = view(bytes);
  for (const at of [24, 28, 32, 40]) if (fields.getUint32(at, true) > MAX_REPORT_US) return MALFORMED.range;
  if (Math.abs(fields.getInt32(36, true)) > MAX_REPORT_US) return MALFORMED.range;
  const periodMs = fields.getUint16(52, true);
  if (hasHeard && (periodMs === 0 || periodMs > MAX_PERIOD_MS)) return MALFORMED.range;
  return KIND_REPORT;
}

/** The report in a datagram that `kindOf` calls `KIND_REPORT`. */
export function readReport(bytes: Uint8Array): Report {
  const fields = view(bytes);
  const count = (at: number) => fields.getUint32(at, true);
  const known = (at: number) => (count(at) === UNKNOWN ? null : count(at));
  const [parts, source] = [fields.getUint8(2), fields.getUint8(3)];
  const input = {
    isCalibrated: source === INPUT_CALIBRATED,
    delayUs: fields.getInt32(36, true),
    errorUs: count(40),
  };
  const capture = {
    timestamp: fields.getBigUint64(8, true),
    timeNs: fields.getBigUint64(16, true),
    errorUs: count(24),
    blockUs: count(28),
    sendUs: count(32),
    input: source === 0 ? null : input,
    overrunFrames: count(44),
    droppedPackets: count(48),
  };
  const heard = {
    isMixed: (parts & HEARD_MIXED) !== 0,
    periodMs: fields.getUint16(52, true),
    receivedPackets: count(56),
    lostPackets: count(60),
    latePackets: count(64),
    playedFrames: count(68),
    concealedFrames: count(72),
    bufferFrames: known(76),
    targetFrames: count(80),
    spreadFrames: known(84),
    outputUnderruns: known(88),
  };
  return {
    id: count(4),
    capture: (parts & CAPTURE_KNOWN) === 0 ? null : capture,
    heard: (parts & HEARD_KNOWN) === 0 ? null : heard,
  };
}

/** A report's datagram, of a direct lane. Figures are rounded, and brought into their ranges. */
export function writeReport({ id, capture, heard }: Report): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(REPORT_BYTES);
  const fields = view(bytes);
  const put = (at: number, value: number, most = UNKNOWN) =>
    fields.setUint32(at, Math.min(most, Math.max(0, Math.round(value))), true);
  const putKnown = (at: number, value: number | null) =>
    value === null ? fields.setUint32(at, UNKNOWN, true) : put(at, value, UNKNOWN - 1);
  const duration = (at: number, us: number) => put(at, us, MAX_REPORT_US);
  bytes[0] = VERSION;
  bytes[1] = KIND_REPORT;
  fields.setUint32(4, id, true);
  if (capture !== null) {
    bytes[2]! |= CAPTURE_KNOWN;
    fields.setBigUint64(8, capture.timestamp, true);
    fields.setBigUint64(16, capture.timeNs, true);
    duration(24, capture.errorUs);
    duration(28, capture.blockUs);
    duration(32, capture.sendUs);
    put(44, capture.overrunFrames);
    put(48, capture.droppedPackets);
    if (capture.input !== null) {
      const { isCalibrated, delayUs, errorUs } = capture.input;
      bytes[3] = isCalibrated ? INPUT_CALIBRATED : INPUT_REPORTED;
      fields.setInt32(36, Math.min(MAX_REPORT_US, Math.max(-MAX_REPORT_US, Math.round(delayUs))), true);
      duration(40, errorUs);
    }
  }
  if (heard !== null) {
    bytes[2]! |= heard.isMixed ? HEARD_KNOWN | HEARD_MIXED : HEARD_KNOWN;
    fields.setUint16(52, Math.min(MAX_PERIOD_MS, Math.max(1, Math.round(heard.periodMs))), true);
    put(56, heard.receivedPackets);
    put(60, heard.lostPackets);
    put(64, heard.latePackets);
    put(68, heard.playedFrames);
    put(72, heard.concealedFrames);
    putKnown(76, heard.bufferFrames);
    put(80, heard.targetFrames);
    putKnown(84, heard.spreadFrames);
    putKnown(88, heard.outputUnderruns);
  }
  return bytes;
}
