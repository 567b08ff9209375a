import { expect, it, vi } from "vitest";
import type { Problem } from "../../src/main/model";
import { Acts } from "../../src/main/ui/acts";
import { said } from "../../src/main/ui/announcer";

const fails = async () => {
  throw new Error("no");
};

it("shows what failed until something else is done, and then anew", async () => {
  const shown: (string | null)[] = [];
  const acts = new Acts((fault) => shown.push(fault?.title ?? null), []);
  await acts.attempt(fails);
  await acts.attempt(fails);
  await acts.attempt(async () => {});
  expect(shown).toEqual([null, "That did not work.", null, "That did not work.", null]);
});

it("says an error again that the user runs into again, and none that comes again by itself", async () => {
  vi.useFakeTimers();
  const problem = (id: string, severity: Problem["severity"] = "error"): Problem => {
    return { id, severity, title: `${id}.`, remedy: "" };
  };
  const [sound, advice] = [problem("sound"), problem("advice", "advice")];
  const acts = new Acts(() => {}, [sound, advice]);
  const messages = () => said().map(({ message }) => message);
  acts.follow([problem("sound")]);
  expect(messages()).toEqual([]);
  await acts.attempt(async () => {
    const again = problem("sound");
    acts.follow([again, problem("advice", "advice")]);
    expect(messages()).toEqual(["sound."]);
    acts.follow([again, problem("another")]);
    acts.follow([]);
    acts.follow([problem("sound")]);
  });
  acts.follow([problem("sound")]);
  await acts.attempt(fails);
  acts.follow([problem("sound")]);
  expect(messages()).toEqual(["sound."]);
  vi.runAllTimers();
  vi.useRealTimers();
});
