import { expect, it } from "vitest";
import { faultIn, type Observation } from "./stage.js";

const busy: Observation = { wrong: "late", isQuiet: false, openings: 0 };
const clear: Observation = { wrong: "lost", isQuiet: true, openings: 0 };
const reopened: Observation = { wrong: "gaps", isQuiet: true, openings: 1 };
const [going, over] = [{ isOver: false }, { isOver: true }];

it("takes for a fault what was wrong three times where it could be told", () => {
  expect(faultIn([clear, busy, clear, reopened], over)).toBeNull();
  expect(faultIn([clear, busy, clear, reopened, clear], going)).toEqual(["lost", "lost", "lost"]);
});

it("takes for a fault that microphones are opened anew each time, though the machine is quiet", () => {
  expect(faultIn([reopened, busy, reopened], going)).toBeNull();
  expect(faultIn([reopened, busy, reopened], over)).toHaveLength(2);
  expect(faultIn([reopened, reopened, reopened], going)).toHaveLength(3);
  expect(faultIn([reopened, clear, reopened, reopened], over)).toBeNull();
});

it("knows nothing of a machine that is never quiet, nor by a single look", () => {
  expect(faultIn([busy, busy, busy, busy], over)).toBeNull();
  expect(faultIn([reopened, busy, busy], over)).toBeNull();
});
