import { afterEach, expect, it, vi } from "vitest";
import { Lane } from "../../src/main/lane";

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

type Stat = Record<string, unknown>;

/** What a browser says of a pair, by its candidates. */
function pair(id: string, local: string, remote: string, rest: Stat, port = 1): [string, Stat][] {
  return [
    [id, { type: "candidate-pair", localCandidateId: `${id} l`, remoteCandidateId: `${id} r`, ...rest }],
    [`${id} l`, { type: "local-candidate", candidateType: local }],
    [`${id} r`, { type: "remote-candidate", candidateType: remote, address: "192.0.2.1", port }],
  ];
}

it("says by which path it goes, relayed if it is at either end, and looks again for a better one", async () => {
  vi.useFakeTimers();
  let stats: [string, Stat][] = [];
  class Connection {
    connectionState = "new";
    onconnectionstatechange = () => {};
    signalingState = "have-local-offer";
    remoteDescription = {
      sdp: "a=candidate:1 1 udp 16777215 192.0.2.1 61857 typ relay raddr 0.0.0.0 rport 0",
    };
    createDataChannel() {}
    async addIceCandidate() {}
    async setRemoteDescription() {}
    getStats = vi.fn(async () => new Map(stats));
    close() {
      this.connectionState = "closed";
    }
  }
  vi.stubGlobal("RTCPeerConnection", Connection);
  const lane = new Lane(0, 1, [], vi.fn(), vi.fn(), vi.fn());
  const connection = lane.connection as unknown as Connection;
  connection.onconnectionstatechange();
  expect(connection.getStats).not.toHaveBeenCalled();
  connection.connectionState = "connected";
  connection.onconnectionstatechange();
  const nominated = { state: "succeeded", nominated: true };
  for (const [now, type] of [
    [pair("a", "host", "host", { state: "in-progress" }), null],
    [pair("a", "host", "relay", nominated), "relay"],
    [pair("a", "relay", "host", nominated), "relay"],
    [pair("a", "prflx", "srflx", nominated), "prflx"],
    // Firefox's, where the check came before the candidate.
    [pair("a", "host", "prflx", nominated, 61857), "relay"],
    [pair("a", "host", "prflx", nominated, 6185), "host"],
    [
      [
        ...pair("a", "host", "relay", nominated),
        ...pair("b", "host", "host", nominated),
        ["t", { type: "transport", selectedCandidatePairId: "b" }],
      ],
      "host",
    ],
  ] as [[string, Stat][], string | null][]) {
    stats = now;
    await vi.advanceTimersByTimeAsync(10_000);
    expect(lane.candidateType).toBe(type);
  }
  // The peer's word of its candidates tells more, and is not waited for.
  lane.handle({ kind: "description", lane: 0, epoch: 1, description: { type: "answer", sdp: "" } });
  stats = pair("a", "relay", "host", nominated);
  lane.handle({ kind: "candidate", lane: 0, epoch: 1, candidate: {} });
  await vi.advanceTimersByTimeAsync(0);
  expect(lane.candidateType).toBe("relay");
  // However often its state changes, it looks no more often.
  connection.getStats.mockClear();
  for (let n = 0; n < 10; n++) connection.onconnectionstatechange();
  await vi.advanceTimersByTimeAsync(0);
  connection.getStats.mockClear();
  await vi.advanceTimersByTimeAsync(20_000);
  expect(connection.getStats).toHaveBeenCalledTimes(2);
  lane.close();
  expect(vi.getTimerCount()).toBe(0);
});

it("takes 64 candidates until ICE is restarted, those before and in the description included", async () => {
  const taken: string[] = [];
  const described: string[] = [];
  class Connection {
    localDescription = null;
    createDataChannel() {}
    async createAnswer() {}
    async setLocalDescription() {}
    async setRemoteDescription({ sdp }: RTCSessionDescriptionInit) {
      described.push(sdp!);
    }
    async addIceCandidate({ candidate }: RTCIceCandidateInit) {
      taken.push(candidate!);
    }
  }
  vi.stubGlobal("RTCPeerConnection", Connection);
  const lane = new Lane(0, 1, [], vi.fn(), vi.fn(), vi.fn());
  const names = Array.from({ length: 1_000 }, (_, n) => `candidate ${n}`);
  const send = () => {
    for (const candidate of names)
      lane.handle({ kind: "candidate", lane: 0, epoch: 1, candidate: { candidate } });
  };
  const offer = (ufrag: string, candidates = 0) =>
    lane.handle({
      kind: "description",
      lane: 0,
      epoch: 1,
      description: {
        type: "offer",
        sdp: `a=ice-ufrag:${ufrag}\r\n${"a=candidate:\r\n".repeat(candidates)}`,
      },
    });
  const look = async (offers: number, candidates: number) => {
    await vi.waitFor(() => expect(described).toHaveLength(offers));
    await new Promise((resolve) => setTimeout(resolve));
    expect(taken.splice(0)).toEqual(names.slice(0, candidates));
  };
  send();
  offer("first");
  send();
  await look(1, 64);
  offer("second", 60);
  send();
  await look(2, 4);
  offer("second");
  send();
  await look(3, 0);
  offer("third", 65);
  offer("fourth", 64);
  send();
  await look(4, 0);
});
