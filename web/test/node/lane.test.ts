import { afterEach, expect, it, vi } from "vitest";
import { Lane } from "../../src/main/lane";

afterEach(() => {
  vi.unstubAllGlobals();
});

it("keeps 64 candidates for a description that has not come, and takes all that come after it", async () => {
  const taken: string[] = [];
  class Connection {
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
