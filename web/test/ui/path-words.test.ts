import { describe, expect, it } from "vitest";
import { PathChanges, pathWords } from "../../src/main/ui/path-words";
import type { LaneStats, PeerStats } from "../../src/shared/stats";

const lane = (state: LaneStats["state"]): LaneStats => ({
  lane: 0,
  state,
  sentDatagrams: 0,
  receivedDatagrams: 0,
  backlogBytes: 0,
  rttMs: null,
  candidateType: null,
});

describe("a path in words", () => {
  it.each<[PeerStats["path"], PeerStats["pin"], LaneStats["state"][], string]>([
    [null, "auto", [], "Nothing arrives at the moment."],
    ["direct", "auto", ["open"], "Arrives directly."],
    ["both", "auto", ["open"], "Arrives both directly and through the server."],
    ["relay", "auto", ["closed", "open"], "Arrives through the server."],
    ["relay", "auto", ["connecting"], "Arrives through the server: no direct way is open."],
    ["relay", "relay", [], "Arrives through the server."],
    ["relay", "direct", [], "Arrives through the server, until the chosen path carries it."],
    ["mix", "auto", [], "Arrives mixed by the server, which does not tell its level."],
    ["mix", "relay", [], "Arrives mixed by the server, until the chosen path carries it."],
  ])("%s, chosen %s, lanes %o", (path, pin, states, words) => {
    expect(pathWords({ path, pin, lanes: states.map(lane) })).toBe(words);
  });
});

describe("changes of path", () => {
  const say = (changes: PathChanges, timeMs: number, path: PeerStats["path"]) =>
    changes.add(timeMs, [{ id: "1", name: "Ann", path }]);

  it("are said once, when they have lasted", () => {
    const changes = new PathChanges();
    expect(say(changes, 0, "direct")).toEqual([]);
    expect(say(changes, 2_000, "direct"), "the first is no change").toEqual([]);
    expect(say(changes, 2_500, "relay")).toEqual([]);
    expect(say(changes, 4_500, "relay")).toEqual(["Ann now comes through the server."]);
    expect(say(changes, 5_000, "relay")).toEqual([]);
  });

  it("are not said while they flicker, nor when nothing comes, nor when a second way is added", () => {
    const changes = new PathChanges();
    say(changes, 0, "direct");
    say(changes, 2_000, "direct");
    const said = ["relay", "direct", "relay", null, "direct", "both"] as const;
    expect(said.flatMap((path, at) => say(changes, 3_000 + at * 1_500, path))).toEqual([]);
    expect(say(changes, 20_000, "both")).toEqual([]);
  });
});
