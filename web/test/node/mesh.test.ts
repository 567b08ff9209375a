import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { type MeshHost, Peer, type PeerSignal } from "../../src/main/mesh";

/** Connects when the test says so. */
class Connection {
  connectionState: RTCPeerConnectionState = "new";
  localDescription: RTCSessionDescriptionInit | null = null;
  onconnectionstatechange = () => {};
  createDataChannel() {
    return {};
  }
  async createOffer() {
    return { type: "offer", sdp: "" };
  }
  async createAnswer() {
    return { type: "answer", sdp: "" };
  }
  async setLocalDescription(description: RTCSessionDescriptionInit) {
    this.localDescription = description;
  }
  async setRemoteDescription() {}
  async getStats() {
    return new Map();
  }
  close() {
    this.connectionState = "closed";
  }
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("RTCPeerConnection", Connection);
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** One end of a pair, with one lane, and what it did. */
function end(own: string, other: string) {
  const made: number[] = [];
  const said: PeerSignal[] = [];
  const host: MeshHost = {
    addLane: (_stream, _lane, epoch) => made.push(epoch),
    closeLane() {},
    signal: (_to, signal) => said.push(signal) > 0,
    changed() {},
  };
  return { peer: new Peer(own, other, 1, 1, [], host), made, said };
}

/** Until neither has anything more to say. */
async function converse(ends: ReturnType<typeof end>[]) {
  for (let turn = 0; turn < 20; turn++) {
    await vi.advanceTimersByTimeAsync(0);
    const said = ends.map(({ said }) => said.splice(0));
    for (const signal of said[0]!) ends[1]!.peer.handle(signal);
    for (const signal of said[1]!) ends[0]!.peer.handle(signal);
  }
}

it.each([
  ["a", "b"],
  ["b", "a"],
])("meets one again that has forgotten it: as %s, with %s", async (own, other) => {
  const kept = end(own, other);
  let fresh = end(other, own);
  await converse([kept, fresh]);
  // Its first connection fails, and so does the one after it.
  const offers = own > other ? kept : fresh;
  offers.peer.laneClosed(0, 0);
  offers.peer.laneClosed(0, 1);
  await converse([kept, fresh]);
  expect(kept.made.at(-1)).toBe(2);
  kept.peer.handle({ kind: "relayed", wanted: false });
  kept.peer.handle({ kind: "direct", wanted: false });
  expect(kept.peer.wants).toEqual({ direct: false, relayed: false });

  fresh.peer.close();
  fresh = end(other, own);
  kept.peer.meetAgain();
  await converse([kept, fresh]);
  expect(kept.peer.wants).toEqual({ direct: true, relayed: true });
  expect(kept.made.at(-1)).toBe(0);
  expect(fresh.made).toEqual([0]);
  kept.peer.close();
  fresh.peer.close();
});

it("keeps a lane that is connected when it meets one again", () => {
  const connections: Connection[] = [];
  vi.stubGlobal(
    "RTCPeerConnection",
    class extends Connection {
      constructor() {
        super();
        connections.push(this);
      }
    },
  );
  const { peer, made } = end("b", "a");
  connections[0]!.connectionState = "connected";
  peer.meetAgain();
  expect(made).toEqual([0]);
  connections[0]!.connectionState = "disconnected";
  peer.meetAgain();
  expect(made).toEqual([0, 0]);
  expect(connections[0]!.connectionState).toBe("closed");
  peer.close();
});
