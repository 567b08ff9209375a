import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { announce, said } from "../../src/main/ui/announcer";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const messages = () => said().map(({ message }) => message);

it("keeps everything that is said at once, in order, and the same words twice", () => {
  for (const message of ["Ann joined.", "The room is locked.", "Ann joined."]) announce(message);
  expect(messages()).toEqual(["Ann joined.", "The room is locked.", "Ann joined."]);
  vi.advanceTimersByTime(3_000);
  const [first] = said();
  announce("Bob left.");
  expect(said()[0], "the same element, which is not said again").toBe(first);
  vi.advanceTimersByTime(2_000);
  expect(messages()).toEqual(["Bob left."]);
  vi.advanceTimersByTime(3_000);
  expect(messages()).toEqual([]);
});
