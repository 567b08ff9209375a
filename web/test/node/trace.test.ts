import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Tracing } from "../../src/main/tracing";
import type { TraceRows } from "../../src/shared/messages";
import { Trace } from "../../src/worker/trace";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Packet `n` of 128 frames of 16-bit stereo, perhaps with a copy of the one before. */
function packet(n: number, { copy }: { copy: boolean }): Uint8Array<ArrayBuffer> {
  const datagram = new Uint8Array(20 + 128 * 4 + (copy ? 2 * (3 + 64) : 0));
  datagram.set([1, 1, 0x11, 2, 0, 0, 128, 0]);
  const fields = new DataView(datagram.buffer);
  fields.setUint32(8, n, true);
  fields.setBigUint64(12, BigInt(128 * n), true);
  return datagram;
}

it("tells a packet from a copy of it", async () => {
  const tracing = new Tracing();
  let worker: Trace | undefined;
  const sound = {
    trace: (seconds: number) => {
      worker = new Trace(seconds, (rows: TraceRows) => tracing.handleRows(rows));
    },
  };
  const traced = tracing.run(sound as never, 1, () => new Map([[7, "B"]]));
  worker!.sent(packet(1, { copy: false }));
  worker!.received(7, packet(1, { copy: false }));
  worker!.received(7, packet(3, { copy: true }));
  vi.advanceTimersByTime(1000);
  const { sent, received } = await traced;
  expect(sent).toMatchObject({ sequence: [1], firstFrame: [128] });
  expect(received).toMatchObject({
    sequence: [1, 3, 2],
    firstFrame: [128, 3 * 128, 2 * 128],
    peer: ["B", "B", "B"],
    isCopy: [false, false, true],
  });
  expect(received.timeMs).toHaveLength(3);
});
