import { expect, it } from "vitest";
import { Peers } from "../../src/worker/peers";

const datagram = new Uint8Array(548);
datagram.set([1, 1, 0x11, 2]);

/** As much of a data channel as a lane looks at. */
function channel() {
  const sent: number[] = [];
  const open = {
    readyState: "open",
    bufferedAmount: 0,
    binaryType: "",
    sent,
    send(bytes: Uint8Array) {
      sent.push(bytes.length);
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
