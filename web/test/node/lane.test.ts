import { afterEach, expect, it, vi } from "vitest";
import { Lane } from "../../src/main/lane";

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

type Stat = Record<string, unknown>;

/** What a browser says of a pair, by its candidates. */
function pair(id: string, local: string, remote: string, rest: Stat): [string, Stat][] {
  return [
    [id, { type: "candidate-pair", localCandidateId: `${id} l`, remoteCandidateId: `${id} r`, ...rest }],
    [`${id} l`, { type: "local-candidate", candidateType: local }],
    [`${id} r`, { type: "remote-candidate", candidateType: remote }],
  ];
}

it("says by which path it goes, relayed if it is at either end, and looks again for a better one", async () => {
  vi.useFakeTimers();
  let stats: [string, Stat][] = [];
  class Connection {
    connectionState = "new";
    onconnectionstatechange = () => {};
    createDataChannel() {}
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

it("keeps 64 candidates for a description that has not come, and takes all that come after it", async () => {
  const taken: string[] = [];
  class Connection {
    signalingState = "have-local-offer";
    createDataChannel() {}
    async setRemoteDescription() {}
    async addIceCandidate({ candidate }: RTCIceCandidateInit) {
      taken.push(candidate!);
    }
  }
  vi.stubGlobal("RTCPeerConnection", Connection);
  const lane = new Lane(0, 1, [], vi.fn(), vi.fn(), vi.fn());
  const send = (candidate: string) =>
    lane.handle({ kind: "candidate", lane: 0, epoch: 1, candidate: { candidate } });
  const names = Array.from({ length: 1_000 }, (_, n) => `candidate ${n}`);
  names.forEach(send);
  lane.handle({ kind: "description", lane: 0, epoch: 1, description: { type: "answer", sdp: "" } });
  names.slice(0, 100).forEach(send);
  await vi.waitFor(() => expect(taken.at(-1)).toBe("candidate 99"));
  expect(taken).toEqual([...names.slice(0, 64), ...names.slice(0, 100)]);
});
