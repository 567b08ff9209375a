import { afterEach, expect, it, vi } from "vitest";
import { accepted } from "../../src/main/ice";

afterEach(() => {
  vi.unstubAllGlobals();
});

it("tries each server once, and one that was refused again: another time it may be the browser that made enough", () => {
  const tried: string[] = [];
  vi.stubGlobal(
    "RTCPeerConnection",
    class {
      constructor({ iceServers }: { iceServers: { urls: string }[] }) {
        const [{ urls }] = iceServers as [{ urls: string }];
        tried.push(urls);
        if (urls === "wrong") throw new SyntaxError("refused");
      }
      close(): void {}
    },
  );
  const [wrong, right] = [{ urls: "wrong" }, { urls: "stun:right" }];
  for (let welcome = 0; welcome < 3; welcome++) expect(accepted([wrong, right])).toEqual([right]);
  expect(tried).toEqual(["wrong", "stun:right", "wrong", "wrong"]);
});
