import { expect, it } from "vitest";
import {
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  probeId,
  probeRepliedNs,
  readReport,
  writeProbe,
  writeReport,
} from "../../src/shared/wire";
import { Peers } from "../../src/worker/peers";

const datagram = new Uint8Array(548);
datagram.set([1, 1, 0x11, 2]);

/** As much of a data channel as a lane looks at. */
function channel() {
  const sent: number[] = [];
  const datagrams: Uint8Array[] = [];
  const open = {
    readyState: "open",
    bufferedAmount: 0,
    binaryType: "",
    sent,
    datagrams,
    onmessage: null as ((event: { data: unknown }) => void) | null,
    send(bytes: Uint8Array) {
      sent.push(bytes.length);
      datagrams.push(bytes.slice());
    },
    close() {},
  };
  return open;
}

function peersWith(lanes: ReturnType<typeof channel>[]) {
  const peers = new Peers({ push: () => true }, () => {});
  for (const [number, lane] of lanes.entries())
    peers.addLane(1, number, 1, true, lane as unknown as RTCDataChannel);
  return peers;
}

it("takes turns among lanes that have no backlog, so that none fills with what is under way", () => {
  const lanes = [channel(), channel(), channel(), channel()];
  const peers = peersWith(lanes);
  for (let n = 0; n < 40; n++) peers.send(datagram);
  expect(lanes.map(({ sent }) => sent.length)).toEqual([10, 10, 10, 10]);
});

it("sends on the lane with the least backlog", () => {
  const lanes = [channel(), channel(), channel()];
  const peers = peersWith(lanes);
  lanes[0].bufferedAmount = 1000;
  lanes[1].bufferedAmount = 500;
  lanes[2].bufferedAmount = 2000;
  for (let n = 0; n < 9; n++) peers.send(datagram);
  expect(lanes.map(({ sent }) => sent.length)).toEqual([0, 9, 0]);
});

it("drops and counts what would wait behind a backlog on every lane", () => {
  const lanes = [channel(), channel()];
  const peers = peersWith(lanes);
  peers.send(datagram);
  peers.send(datagram);
  for (const lane of lanes) lane.bufferedAmount = 548;
  peers.takeStock(0);
  peers.takeStock(500);
  peers.send(datagram);
  expect(lanes.map(({ sent }) => sent.length)).toEqual([1, 1]);
  expect(peers.stats()[0].droppedBacklog).toBe(1);
});

it("passes over a lane that is closed", () => {
  const lanes = [channel(), channel()];
  const peers = peersWith(lanes);
  lanes[0].readyState = "closed";
  for (let n = 0; n < 6; n++) peers.send(datagram);
  expect(lanes.map(({ sent }) => sent.length)).toEqual([0, 6]);
});

it("answers a probe with its own clock, on the lane the probe came by", () => {
  const lanes = [channel(), channel()];
  peersWith(lanes);
  lanes[1].onmessage?.({ data: writeProbe(77, 5n).buffer });
  expect(lanes[0].datagrams).toEqual([]);
  const [reply] = lanes[1].datagrams;
  expect([kindOf(reply), probeId(reply)]).toEqual([KIND_PROBE_REPLY, 77]);
  expect(probeRepliedNs(reply)).toBeGreaterThan(0n);
});

it("knows the offset of a peer whose page is itself, to the round trip", () => {
  const lane = channel();
  const peers = peersWith([lane]);
  peers.review(1_000_000);
  const [probe] = lane.datagrams;
  expect(kindOf(probe)).toBe(KIND_PROBE);
  lane.onmessage?.({ data: probe.buffer });
  lane.onmessage?.({ data: lane.datagrams[1].buffer });
  expect(peers.stats()[0].lanes[0].rttMs).not.toBeNull();
});

it("reports to each peer how it is heard, and knows how the peer hears us", () => {
  const lane = channel();
  const passed: number[] = [];
  const peers = new Peers({ push: (_, bytes) => passed.push(bytes.length) > 0 }, () => {});
  peers.addLane(1, 0, 1, true, lane as unknown as RTCDataChannel);
  const heard = {
    periodMs: 4_000,
    receivedPackets: 990,
    lostPackets: 10,
    latePackets: 0,
    playedFrames: 190_080,
    concealedFrames: 1_920,
    bufferFrames: null,
    targetFrames: 208,
    spreadFrames: null,
    outputUnderruns: null,
  };
  peers.setHeard(1, heard);
  peers.setHeard(9, heard);
  peers.report(null);
  peers.report(null);
  expect(lane.datagrams.map((bytes) => [kindOf(bytes), readReport(bytes).heard])).toEqual([
    [KIND_REPORT, heard],
  ]);
  expect(peers.stats()[0].heard).toBeNull();
  lane.onmessage?.({ data: writeReport({ id: 1, capture: null, heard }).buffer });
  expect(peers.stats()[0].heard).toMatchObject({ lostShare: 0.01, concealedShare: 0.01, bufferFrames: null });
  // One that cannot be goes where all malformed datagrams are counted.
  const bad = writeReport({ id: 2, capture: null, heard });
  bad[54] = 1;
  lane.onmessage?.({ data: bad.buffer });
  expect(peers.stats()[0].heard).toMatchObject({ lostShare: 0.01, concealedShare: 0.01, bufferFrames: null });
  expect(passed).toEqual([bad.length]);
});
