import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { OpusRung } from "../../src/shared/rungs";
import { kindOf, readAudioHeader, writeOpus } from "../../src/shared/wire";
import { FEED_FRAMES, OpusReceiver, OpusSender } from "../../src/worker/opus";
import {
  type FakeChunk,
  type FakeData,
  FakeDecoder,
  FakeEncoder,
  installFakes,
  opusDatagram,
  removeFakes,
} from "./webcodecs";

beforeEach(installFakes);
afterEach(removeFakes);

const rung = (frames: 120 | 240 | 480): OpusRung => ({
  key: "opus",
  format: "opus",
  opusBps: 128_000,
  frames,
});

/** A datagram of the feed: floats, whose first sample is the datagram's number. */
function feed(timestamp: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(20 + FEED_FRAMES * 2 * 4);
  bytes.set([1, 1, 0x13, 2, 0, 0, FEED_FRAMES, 0]);
  const fields = new DataView(bytes.buffer);
  fields.setBigUint64(12, BigInt(timestamp), true);
  fields.setFloat32(20, timestamp / FEED_FRAMES, true);
  return bytes;
}

describe("the encoding side", () => {
  const encode = (frames: 120 | 240 | 480, feeds: Uint8Array[]) => {
    const sent: number[] = [];
    const sender = new OpusSender(
      rung(frames),
      2,
      (datagram) => {
        expect(kindOf(datagram)).toBe(1);
        const header = readAudioHeader(datagram);
        expect(header).toMatchObject({ frames, channels: 2, bits: null });
        const time = Number(header.timestamp);
        // The second byte is what it sounds like: it begins with the sound of its own time.
        expect(datagram[21]).toBe(time / FEED_FRAMES);
        sent.push(time);
      },
      (reason) => expect(reason).toBe(""),
    );
    for (const datagram of feeds) sender.push(datagram);
    return sent;
  };

  it("takes the encoder's lookahead off the media time, and skips what is before the first frame", () => {
    const feeds = Array.from({ length: 8 }, (_, n) => feed(120 * n));
    expect(encode(120, feeds)).toEqual([1, 2, 3, 4, 5, 6, 7].map((n) => 120 * n - 120));
    expect(encode(480, feeds)).toEqual([480 - 120]);
  });

  it("passes over what comes while the encoder is set up, what it made first, and what begins with the end of that", () => {
    const late: (() => void)[] = [];
    Object.assign(globalThis, {
      AudioEncoder: class extends FakeEncoder {
        override encode(data: FakeData): void {
          late.push(() => super.encode(data));
        }
      },
    });
    const times: number[] = [];
    const sender = new OpusSender(
      rung(120),
      2,
      (datagram) => times.push(Number(readAudioHeader(datagram).timestamp)),
      () => {},
    );
    for (let n = 10; n < 30; n++) sender.push(feed(120 * n));
    expect(late.length).toBe(1);
    late.shift()?.();
    for (let n = 30; n < 33; n++) sender.push(feed(120 * n));
    for (const encode of late) encode();
    expect(times).toEqual([31, 32].map((n) => 120 * n - 120));
  });

  it("passes over what finds the encoder's queue full, and of what went in after it the first, which begins before it", () => {
    const late: (() => void)[] = [];
    Object.assign(globalThis, {
      AudioEncoder: class extends FakeEncoder {
        override encode(data: FakeData): void {
          this.encodeQueueSize++;
          late.push(() => {
            this.encodeQueueSize--;
            super.encode(data);
          });
        }
      },
    });
    const times: number[] = [];
    const sender = new OpusSender(
      rung(120),
      2,
      (datagram) => times.push(Number(readAudioHeader(datagram).timestamp)),
      () => {},
    );
    sender.push(feed(1_200));
    late.shift()?.();
    // It stands still for as long as two hundred packets take.
    for (let n = 11; n < 211; n++) sender.push(feed(120 * n));
    const queued = late.length;
    expect(queued).toBeLessThan(200);
    for (const encode of late.splice(0)) encode();
    for (let n = 211; n < 214; n++) {
      sender.push(feed(120 * n));
      late.shift()?.();
    }
    const sent = [...Array.from({ length: queued }, (_, n) => 11 + n), 212, 213];
    expect(times).toEqual(sent.map((n) => 120 * n - 120));
  });

  it("begins a packet anew after a jump in media time, which the encoder does not see, where all encoders of the feed do, and sends none that begins before it", () => {
    const times = [1200, 1320, 1440, 9000, 9120, 9240, 9360, 9480];
    expect(encode(240, times.map(feed))).toEqual([9240]);
    expect(FakeEncoder.timestampsUs).toEqual([0, 5000, 10_000]);
  });
});

describe("the decoding side", () => {
  const packet = (n: number, sound = n) => opusDatagram(120, 100_000 + 120 * n, sound);

  const decode = (datagrams: Uint8Array<ArrayBuffer>[]) => {
    const played: number[] = [];
    const passedOver: number[] = [];
    let refused = 0;
    const receiver = new OpusReceiver(
      (record) => {
        if (record.length === 20) {
          passedOver.push((Number(readAudioHeader(record).timestamp) - 100_000) / 120);
          return;
        }
        const samples = new Float32Array(record.buffer, 20);
        expect(samples.length).toBe(240);
        // Interleaved.
        expect(samples[1] - samples[0]).toBe(0.5);
        expect(Number(readAudioHeader(record).timestamp)).toBe(100_000 + 120 * samples[0]);
        played.push(samples[0]);
      },
      () => refused++,
    );
    for (const datagram of datagrams) receiver.push(datagram);
    return { passedOver, played, refused, duplicates: receiver.duplicates };
  };

  it("hands over every packet's samples under its own header, each once", () => {
    expect(decode([1, 2, 2, 3, 1, 4].map((n) => packet(n)))).toEqual({
      passedOver: [1],
      played: [2, 3, 4],
      refused: 0,
      duplicates: 2,
    });
  });

  it("puts what two lanes mixed up in order, and does not wait long for what is lost", () => {
    expect(decode([1, 3, 2, 5, 4, 6].map((n) => packet(n))).played).toEqual([2, 3, 4, 5, 6]);
    expect(decode([1, 4, 5, 6].map((n) => packet(n))).played).toEqual([]);
    expect(decode([1, 4, 5, 6, 7].map((n) => packet(n))).played).toEqual([4, 5, 6, 7]);
  });

  it("counts one that comes too late as received, and its copies as duplicates", () => {
    expect(decode([1, 4, 5, 6, 7, 2, 8, 2, 5].map((n) => packet(n)))).toEqual({
      passedOver: [1, 2],
      played: [4, 5, 6, 7, 8],
      refused: 0,
      duplicates: 2,
    });
  });

  it("waits for one packet behind a gap, however long packets are", () => {
    const times: bigint[] = [];
    const receiver = new OpusReceiver(
      (record) => times.push(readAudioHeader(record).timestamp),
      () => {},
    );
    const long = (n: number) => opusDatagram(480, 480 * n);
    for (const n of [1, 3, 2, 4, 6, 7, 5]) receiver.push(long(n));
    expect(times).toEqual([1, 2, 3, 4, 6, 7, 5].map((n) => BigInt(480 * n)));
  });

  it("keeps back what a decoder without a past gives, where longer packets are sent as well", () => {
    const delivered: number[] = [];
    const longer = new OpusReceiver(
      () => {},
      () => {},
    );
    const receiver = new OpusReceiver(
      (record) => delivered.push(record.length),
      () => {},
      (time) => longer.isNear(time),
    );
    const played = (from: number, to: number, isLongerSent: boolean) => {
      delivered.length = 0;
      for (let n = from; n < to; n++) {
        if (isLongerSent && n % 4 === 0) longer.push(opusDatagram(480, 100_000 + 120 * n));
        receiver.push(packet(n, 1));
      }
      return delivered.map((length) => length > 20);
    };
    const all = (count: number, is: boolean) => Array(count).fill(is);
    // The first one is passed over while the decoder is set up.
    expect(played(1_000, 1_100, true)).toEqual([...all(41, false), ...all(59, true)]);
    expect(played(2_000, 2_100, true), "after a jump").toEqual([...all(40, false), ...all(60, true)]);
    expect(played(3_000, 3_100, false), "by themselves").toEqual(all(100, true));
  });

  it("passes over what finds the decoder's queue full", () => {
    Object.assign(globalThis, {
      AudioDecoder: class extends FakeDecoder {
        override decodeQueueSize = 1_000;
      },
    });
    expect(decode([1, 2, 3].map((n) => packet(n)))).toMatchObject({ passedOver: [1, 2, 3], played: [] });
  });

  it("passes over what comes while the decoder is set up", () => {
    const late: (() => void)[] = [];
    Object.assign(globalThis, {
      AudioDecoder: class extends FakeDecoder {
        override decode(chunk: FakeChunk): void {
          late.push(() => super.decode(chunk));
        }
      },
    });
    const lengths: number[] = [];
    const receiver = new OpusReceiver(
      (record) => lengths.push(record.length),
      () => {},
    );
    for (let n = 1; n < 5; n++) receiver.push(packet(n));
    expect(late.length).toBe(1);
    late.shift()?.();
    receiver.push(packet(5));
    for (const decode of late) decode();
    expect(lengths).toEqual([20, 20, 20, 20, 20 + 120 * 8]);
  });

  it("follows a jump in media time at once, forth and back", () => {
    const times: number[] = [];
    const receiver = new OpusReceiver(
      (record) => times.push((Number(readAudioHeader(record).timestamp) - 100_000) / 120),
      () => {},
    );
    for (const n of [1, 1000, 1001, 5, 6]) receiver.push(packet(n, 1));
    expect(times).toEqual([1, 1000, 1001, 5, 6]);
  });

  it("refuses what no decoder reads, and makes no new decoder for each", () => {
    const now = vi.spyOn(performance, "now");
    const hostile = Array.from({ length: 8_000 }, (_, n) => packet(n, 255));
    let refused = 0;
    const receiver = new OpusReceiver(
      () => {},
      () => refused++,
    );
    for (const [n, datagram] of hostile.entries()) {
      now.mockReturnValue(n / 8);
      receiver.push(datagram);
    }
    expect(refused).toBe(8_000);
    expect(FakeDecoder.made, "in a second").toBe(2);
    now.mockRestore();
  });

  it("follows a change of channels at once, but makes no new decoder for each", () => {
    const now = vi.spyOn(performance, "now");
    const heard: number[] = [];
    const receiver = new OpusReceiver(
      (record) => heard.push(record[3]),
      () => {},
    );
    const push = (n: number, channels: number) => {
      now.mockReturnValue(n * 2.5);
      receiver.push(opusDatagram(120, 120 * n, 0, channels));
    };
    for (let n = 0; n < 300; n++) push(n, n < 220 ? 2 : 1);
    expect(heard).toEqual(Array.from({ length: 300 }, (_, n) => (n < 220 ? 2 : 1)));
    expect(FakeDecoder.made).toBe(2);
    for (let n = 300; n < 2_300; n++) push(n, 1 + (n % 2));
    expect(FakeDecoder.made, "in five seconds more").toBeLessThanOrEqual(2 + 5 * 2);
    now.mockRestore();
  });

  it("refuses a packet of another duration than its header says, unread", () => {
    const fits = (change: (payload: Uint8Array) => void) => {
      const other = packet(2);
      change(other.subarray(20));
      const { played, refused } = decode([packet(1), other, ...[3, 4, 5, 6].map((n) => packet(n))]);
      expect(played, "those behind it").toEqual(refused === 1 ? [3, 4, 5, 6] : [2, 3, 4, 5, 6]);
      return refused === 0;
    };
    // 2.5 ms, alone; two and forty-eight of them; one of 5 and of 60 ms.
    expect(fits((payload) => payload.set([0xe0]))).toBe(true);
    expect(fits((payload) => payload.set([0xe1]))).toBe(false);
    expect(fits((payload) => payload.set([0xe3, 48]))).toBe(false);
    expect(fits((payload) => payload.set([0xe8]))).toBe(false);
    expect(fits((payload) => payload.set([0x18]))).toBe(false);
    expect(decode([packet(1), writeOpus(2, 120, 100_240n, 0).datagram])).toMatchObject({ refused: 1 });
  });

  it("refuses a packet that gives other frames than it says", () => {
    expect(decode([packet(1), packet(2, 254), packet(3)])).toMatchObject({ played: [3], refused: 1 });
  });

  it("refuses all where the browser has no decoder", () => {
    delete (globalThis as Record<string, unknown>).AudioDecoder;
    expect(decode([packet(1), packet(2)])).toMatchObject({ played: [], refused: 2 });
  });
});
