import { afterEach, expect, it, vi } from "vitest";
import { accepted } from "../../src/main/ice";

afterEach(() => {
  vi.unstubAllGlobals();
});

it("tries each server once, and one that was refused again, and refuses none while the browser makes no connections", () => {
  const tried: string[] = [];
  let hasEnough = false;
  vi.stubGlobal(
    "RTCPeerConnection",
    class {
      constructor({ iceServers }: { iceServers: { urls: string }[] }) {
        if (hasEnough) throw new DOMException("Cannot create so many PeerConnections", "UnknownError");
        for (const { urls } of iceServers) tried.push(urls);
        if (iceServers[0]?.urls === "wrong") throw new SyntaxError("refused");
      }
      close(): void {}
    },
  );
  const [wrong, right] = [{ urls: "wrong" }, { urls: "stun:right" }];
  for (let welcome = 0; welcome < 3; welcome++) expect(accepted([wrong, right])).toEqual([right]);
  expect(tried).toEqual(["wrong", "stun:right", "wrong", "wrong"]);
  const other = { urls: "turn:other" };
  hasEnough = true;
  expect(accepted([other, right])).toEqual([other, right]);
  hasEnough = false;
  expect(accepted([wrong, other])).toEqual([other]);
});
