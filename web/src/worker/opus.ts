/** Opus by WebCodecs: the sender's frames into datagrams, and a peer's datagrams into frames. */

import type { OpusRung } from "../shared/rungs";
import {
  AUDIO_HEADER_BYTES,
  MAX_DATAGRAM_BYTES,
  OPUS_RATE_HZ,
  readAudioHeader,
  writeOpus,
} from "../shared/wire";

/** Frames in each datagram of the rendition that feeds the encoders: every Opus packet is a whole number of them. */
export const FEED_FRAMES = 120;
/** Blocks that may wait in a codec, 0.3 s or more: what falls behind further is better cut short than late. */
const MAX_QUEUE = 128;
/** A decoder that has swallowed so many packets gives each one's sound for another's. */
const MAX_DECODING = 4 * MAX_QUEUE;
/** The lookahead if the browser does not tell: libopus's own, without its low-delay mode. */
const DEFAULT_LOOKAHEAD_FRAMES = 312;
/** A gap in media time waits for the packets that begin within so many frames of the first behind it: two lanes may differ by 5 ms, and copies come after the burst they belong to. */
const MAX_WAITING_FRAMES = 240;
/** A jump in media time of more is no gap. */
const MAX_GAP_FRAMES = 48_000n;
/**
 * From the past of so many frames the loudness of each packet is foretold. A decoder that begins where its encoder does not has it after these; until
 * then much of the sound is too quiet, at first by more than 20 dB. And an encoder takes over from another, in the same decoder, so many frames after
 * its first: after one packet a chord was too loud by up to 4 dB, for 0.1 s.
 */
export const WARM_UP_FRAMES = 4_800;
/** Longer packets that came as near as this in media time are still sent. */
const NEAR_FRAMES = 960n;
/** Packets passed over, before an encoder is given up and, while it is set up, a decoder gets the next. */
const PATIENCE_PACKETS = 1_000;
/** Packets whose times are remembered, to tell a copy from one that comes late. */
const MAX_HANDLED = 64;
/** No decoder is made sooner after the last: where that has failed, or mono and stereo change, packets are refused until then. So a peer's nonsense costs little. */
const LEAST_BETWEEN_DECODERS_MS = 500;

export const hasOpus = (): boolean =>
  typeof AudioEncoder !== "undefined" && typeof AudioDecoder !== "undefined";

function durationUs(frames: number): number {
  return (frames / OPUS_RATE_HZ) * 1e6;
}

/**
 * A codec takes up to some hundred milliseconds to be set up. So its first packet goes in alone, and what comes until that is out is
 * passed over: better missing (the format before is still sent) than late, which would lengthen the listener's buffer.
 */
type Readiness = "new" | "starting" | "ready";

/** Encodes the frames of the feed (a rendition of floats of so many channels) for all who listen to one rung. */
export class OpusSender {
  readonly #rung: OpusRung;
  readonly #channels: number;
  readonly #send: (datagram: Uint8Array<ArrayBuffer>) => void;
  readonly #failed: (reason: string) => void;
  readonly #encoder: AudioEncoder;
  /** The packet under way, interleaved. */
  readonly #block: Float32Array<ArrayBuffer>;
  #blockFrames = 0;
  #blockTime = 0n;
  #blocks = 0;
  #readiness: Readiness = "new";
  /** Blocks that did not go in since the last that did. */
  #passedOver = 0;
  /** Whether media time has jumped since then. */
  #isBehindJump = false;
  /** The blocks in the encoder: media time, and whether the sound before it did not go in. One goes in, one comes out. */
  readonly #encoding: { time: bigint; isBehindGap: boolean }[] = [];
  #lookaheadFrames: bigint | null = null;

  /** `failed` gets the reason, once; nothing is sent after that. */
  constructor(
    rung: OpusRung,
    channels: number,
    send: (datagram: Uint8Array<ArrayBuffer>) => void,
    failed: (reason: string) => void,
  ) {
    this.#rung = rung;
    this.#channels = channels;
    this.#send = send;
    this.#failed = failed;
    this.#block = new Float32Array(rung.frames * channels);
    this.#encoder = new AudioEncoder({
      output: (chunk, metadata) => this.#handle(chunk, metadata?.decoderConfig?.description),
      error: (error) => this.#fail(error),
    });
    try {
      this.#encoder.configure(encoderConfig(rung, channels));
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Whether packets come of it: of one that stands still, as far as its queue tells. */
  get isReady(): boolean {
    return this.#readiness === "ready" && this.#passedOver === 0 && this.#encoder.state === "configured";
  }

  /** Takes a datagram of the feed: `FEED_FRAMES` frames of floats. */
  push(datagram: Uint8Array): void {
    const { timestamp, channels, frames } = readAudioHeader(datagram);
    if (this.#encoder.state !== "configured" || channels !== this.#channels) return;
    // After an overrun the frames before it have no continuation.
    if (timestamp !== this.#blockTime + BigInt(this.#blockFrames)) {
      this.#blockFrames = 0;
      this.#isBehindJump = true;
    }
    if (this.#blockFrames === 0) {
      if (!isBoundary(timestamp, this.#rung.frames)) return;
      this.#blockTime = timestamp;
    }
    // A copy: the samples need not be aligned in the datagram.
    const samples = new Float32Array(datagram.slice(AUDIO_HEADER_BYTES).buffer);
    this.#block.set(samples, this.#blockFrames * channels);
    this.#blockFrames += frames;
    if (this.#blockFrames === this.#rung.frames) this.#encode();
  }

  close(): void {
    if (this.#encoder.state !== "closed") this.#encoder.close();
  }

  #fail(error: unknown): void {
    this.close();
    this.#failed(String(error));
  }

  #encode(): void {
    const { frames } = this.#rung;
    const timestamp = this.#blockTime;
    this.#blockFrames = 0;
    this.#blockTime += BigInt(frames);
    if (this.#readiness === "starting" || this.#encoder.encodeQueueSize > MAX_QUEUE) {
      if (++this.#passedOver >= PATIENCE_PACKETS) this.#fail("No packet came of it.");
      return;
    }
    if (this.#readiness === "new") this.#readiness = "starting";
    const data = new AudioData({
      format: "f32",
      sampleRate: OPUS_RATE_HZ,
      numberOfFrames: frames,
      numberOfChannels: this.#channels,
      // Without the jumps that media time may have: an encoder would fill those.
      timestamp: this.#blocks++ * durationUs(frames),
      data: this.#block,
    });
    this.#encoding.push({ time: timestamp, isBehindGap: this.#passedOver > 0 || this.#isBehindJump });
    this.#passedOver = 0;
    this.#isBehindJump = false;
    this.#encoder.encode(data);
    data.close();
  }

  #handle(chunk: EncodedAudioChunk, description: AllowSharedBufferSource | undefined): void {
    this.#lookaheadFrames ??= BigInt(preSkipFrames(description) ?? DEFAULT_LOOKAHEAD_FRAMES);
    const encoded = this.#encoding.shift();
    if (this.#readiness === "starting") {
      this.#readiness = "ready";
      return;
    }
    if (encoded === undefined) return;
    const { time, isBehindGap } = encoded;
    // Behind a gap it begins with the end of what went in last; and the first milliseconds of all are before the first frame.
    if (isBehindGap || time < this.#lookaheadFrames) return;
    if (chunk.byteLength > MAX_DATAGRAM_BYTES - AUDIO_HEADER_BYTES) return;
    const start = time - this.#lookaheadFrames;
    const { datagram, packet } = writeOpus(this.#channels, this.#rung.frames, start, chunk.byteLength);
    chunk.copyTo(packet);
    this.#send(datagram);
  }
}

/**
 * Whether packets of `frames` frames begin with the feed's datagram of that media time: in all encoders of a feed with the same, so that one can
 * take over from another between two packets.
 */
function isBoundary(timestamp: bigint, frames: number): boolean {
  return Number(timestamp / BigInt(FEED_FRAMES)) % (frames / FEED_FRAMES) === 0;
}

function encoderConfig({ opusBps, frames }: OpusRung, channels: number): AudioEncoderConfig {
  return {
    codec: "opus",
    sampleRate: OPUS_RATE_HZ,
    numberOfChannels: channels,
    bitrate: opusBps,
    bitrateMode: "constant",
    opus: { frameDuration: durationUs(frames), application: "lowdelay", complexity: 5, format: "opus" },
  } as AudioEncoderConfig;
}

/** What the encoder says of its lookahead: "pre-skip" of the identification header (RFC 7845, 5.1). */
function preSkipFrames(description: AllowSharedBufferSource | undefined): number | null {
  if (description === undefined || description.byteLength < 12) return null;
  const bytes = ArrayBuffer.isView(description)
    ? new Uint8Array(description.buffer, description.byteOffset, description.byteLength)
    : new Uint8Array(description);
  return bytes[10] | (bytes[11] << 8);
}

/** How long a packet says that it lasts, in frames (RFC 6716, 3.1 and 3.2.5); 0 if it is none. */
function framesOf(packet: Uint8Array): number {
  const toc = packet[0] ?? 3;
  const mode = toc >> 3;
  const sizes = mode < 12 ? [480, 960, 1_920, 2_880] : mode < 16 ? [480, 960] : [120, 240, 480, 960];
  const count = [1, 2, 2, (packet[1] ?? 0) & 63][toc & 3]!;
  return sizes[mode % sizes.length]! * count;
}

/** Decodes one peer's packets of one duration, in order, each once. */
export class OpusReceiver {
  /** Gets a record for the engine: the datagram's header, then samples, or none if the packet was passed over. */
  readonly #deliver: (record: Uint8Array<ArrayBuffer>) => void;
  /** Gets a datagram that no decoder reads. */
  readonly #refuse: (datagram: Uint8Array<ArrayBuffer>) => void;
  /** Whether longer packets are sent as well, at this media time. Shorter ones come first, and would be played before their decoder can. */
  readonly #hasLonger: (time: bigint) => boolean;
  #decoder: AudioDecoder | null = null;
  #channels = 0;
  #readiness: Readiness = "new";
  /** The packets in the decoder, and whether what they give is kept from the engine. One goes in, one comes out. */
  #decoding: { datagram: Uint8Array<ArrayBuffer>; isKeptBack: boolean }[] = [];
  /** Packets behind a gap, oldest first. */
  #waiting: { time: bigint; frames: number; datagram: Uint8Array<ArrayBuffer> }[] = [];
  /** Media time after the last packet decoded. */
  #next: bigint | null = null;
  /** Media time where the decoder's past begins; null before that. */
  #began: bigint | null = null;
  /** Of the packets handled last. */
  readonly #handled: bigint[] = [];
  /** That went into this decoder. */
  #packets = 0;
  /** When the last decoder was made. */
  #madeAtMs = Number.NEGATIVE_INFINITY;
  #passedOver = 0;
  /** Packets that came twice. */
  duplicates = 0;

  constructor(
    deliver: (record: Uint8Array<ArrayBuffer>) => void,
    refuse: (datagram: Uint8Array<ArrayBuffer>) => void,
    hasLonger: (time: bigint) => boolean = () => false,
  ) {
    this.#deliver = deliver;
    this.#refuse = refuse;
    this.#hasLonger = hasLonger;
  }

  /** Whether packets of about this media time have come. */
  isNear(time: bigint): boolean {
    const ahead = this.#next === null ? MAX_GAP_FRAMES : time - this.#next;
    return ahead <= NEAR_FRAMES && ahead >= -NEAR_FRAMES;
  }

  /** Takes an Opus datagram that `kindOf` accepted; it is kept. */
  push(datagram: Uint8Array<ArrayBuffer>): void {
    const { timestamp: time, frames } = readAudioHeader(datagram);
    // Unread: to decode 120 ms under a header that says 2.5 costs as much as it sounds.
    if (framesOf(datagram.subarray(AUDIO_HEADER_BYTES)) !== frames) {
      this.#refuse(datagram);
      return;
    }
    const ahead = this.#next === null ? 0n : time - this.#next;
    if (ahead > MAX_GAP_FRAMES || ahead < -MAX_GAP_FRAMES) {
      this.#waiting = [];
      this.#began = null;
      this.#decode(time, frames, datagram);
    } else if (this.#handled.includes(time) || this.#waiting.some((other) => other.time === time)) {
      this.duplicates++;
    } else if (ahead < 0n) {
      // It came, though too late for a decoder that is past it.
      this.#remember(time);
      this.#deliver(datagram.slice(0, AUDIO_HEADER_BYTES));
    } else if (ahead === 0n) {
      this.#decode(time, frames, datagram);
    } else {
      this.#waiting.push({ time, frames, datagram });
      this.#waiting.sort((a, b) => (a.time < b.time ? -1 : 1));
    }
    this.#release();
  }

  close(): void {
    if (this.#decoder !== null && this.#decoder.state !== "closed") this.#decoder.close();
    this.#decoder = null;
  }

  /** Decodes what waits for nothing, or has waited for long enough. */
  #release(): void {
    for (;;) {
      const [first] = this.#waiting;
      if (first === undefined) return;
      const waiting = (this.#waiting.length - 1) * first.frames;
      if (this.#next !== null && first.time > this.#next && waiting <= MAX_WAITING_FRAMES) return;
      this.#waiting.shift();
      this.#decode(first.time, first.frames, first.datagram);
    }
  }

  #remember(time: bigint): void {
    this.#handled.push(time);
    if (this.#handled.length > MAX_HANDLED) this.#handled.shift();
  }

  #decode(time: bigint, frames: number, datagram: Uint8Array<ArrayBuffer>): void {
    this.#next = time + BigInt(frames);
    this.#remember(time);
    const channels = datagram[3];
    const isStuck = this.#decoding.length > MAX_DECODING;
    if (this.#decoder === null || this.#channels !== channels || isStuck) {
      const nowMs = performance.now();
      if (!hasOpus() || nowMs - this.#madeAtMs < LEAST_BETWEEN_DECODERS_MS) {
        this.#refuse(datagram);
        return;
      }
      this.#madeAtMs = nowMs;
      this.#configure(channels);
    }
    if (this.#decoder === null) return;
    const isFull = this.#decoder.decodeQueueSize > MAX_QUEUE;
    if (isFull || this.#readiness !== "ready") this.#deliver(datagram.slice(0, AUDIO_HEADER_BYTES));
    if (isFull) return;
    if (this.#readiness === "starting" && ++this.#passedOver < PATIENCE_PACKETS) return;
    if (this.#readiness === "new") this.#readiness = "starting";
    if (this.#readiness === "ready") this.#began ??= time;
    this.#passedOver = 0;
    const isCold = this.#began !== null && time - this.#began < WARM_UP_FRAMES;
    this.#decoding.push({ datagram, isKeptBack: isCold && this.#hasLonger(time) });
    const timestamp = this.#packets++ * durationUs(frames);
    this.#decoder.decode(
      new EncodedAudioChunk({ type: "key", timestamp, data: datagram.subarray(AUDIO_HEADER_BYTES) }),
    );
  }

  #configure(channels: number): void {
    this.close();
    this.#decoding = [];
    this.#began = null;
    this.#packets = 0;
    this.#channels = channels;
    this.#readiness = "new";
    const decoder = new AudioDecoder({
      output: (data) => {
        try {
          if (decoder === this.#decoder) this.#handle(data);
        } finally {
          data.close();
        }
      },
      error: () => {
        if (decoder !== this.#decoder) return;
        const [refused] = this.#decoding;
        if (refused !== undefined) this.#refuse(refused.datagram);
        this.#decoder = null;
      },
    });
    // Without a description nothing is cut off: the timestamps tell what is to be played.
    decoder.configure({ codec: "opus", sampleRate: OPUS_RATE_HZ, numberOfChannels: channels });
    this.#decoder = decoder;
  }

  #handle(data: AudioData): void {
    const decoded = this.#decoding.shift();
    if (decoded === undefined) return;
    const { datagram, isKeptBack } = decoded;
    if (this.#readiness === "starting") {
      this.#readiness = "ready";
      return;
    }
    const { frames, channels } = readAudioHeader(datagram);
    if (data.numberOfFrames !== frames || data.numberOfChannels !== channels) {
      this.#refuse(datagram);
      return;
    }
    if (isKeptBack) {
      this.#deliver(datagram.slice(0, AUDIO_HEADER_BYTES));
      return;
    }
    const record = new Uint8Array(AUDIO_HEADER_BYTES + frames * channels * 4);
    record.set(datagram.subarray(0, AUDIO_HEADER_BYTES));
    const samples = new Float32Array(record.buffer, AUDIO_HEADER_BYTES);
    const plane = new Float32Array(frames);
    for (let channel = 0; channel < channels; channel++) {
      data.copyTo(plane, { planeIndex: channel, format: "f32-planar" });
      for (let n = 0; n < frames; n++) samples[n * channels + channel] = plane[n];
    }
    this.#deliver(record);
  }
}
