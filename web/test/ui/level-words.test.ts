import { expect, it } from "vitest";
import { LevelNews, type LevelState, levelState, levelWords, peakWords } from "../../src/main/ui/level-words";

it("says once that one is heard, and each time that something is amiss", () => {
  const news = new LevelNews();
  const changes: [LevelState, boolean][] = [
    ["quiet", false],
    ["nothing", true],
    ["quiet", false],
    ["clipping", true],
    ["coming", false],
    ["heard", true],
    ["resting", false],
    ["heard", false],
    ["clipping", true],
    ["heard", false],
    ["nothing", true],
  ];
  for (const [state, isNews] of changes) expect(news.add(state)).toBe(isNews ? levelWords[state] : null);
});

it("tells silence of the microphone from that of a sound that does not run", () => {
  const unmuted = { selfMuted: false, mutedByOwner: false, inputMuted: false };
  const own = { ...unmuted, microphone: "on", captures: true } as const;
  expect(levelState("nothing", own)).toBe("nothing");
  expect(levelState("nothing", { ...own, captures: false })).toBe("stopped");
  expect(levelState("heard", own)).toBe("heard");
  expect(levelState("heard", { ...own, selfMuted: true })).toBe("coming");
});

it("puts a level into words, and says of the loudest that it clips", () => {
  expect([null, 0, 0.25, 1].map(peakWords)).toEqual([
    "Peak –",
    "Silent",
    "Peak −12.0\u202fdBFS",
    "Peak 0.0\u202fdBFS: clips",
  ]);
});
