import { createRoot, createSignal } from "solid-js";
import { expect, it, vi } from "vitest";
import { createLasting } from "../../src/main/ui/lasting";

it("tells what has lasted, as long as it does, and not what is over sooner", () => {
  vi.useFakeTimers();
  const [is, set] = createSignal(false);
  const isLong = createRoot(() => createLasting(is, 1_000));
  set(true);
  vi.advanceTimersByTime(900);
  set(false);
  vi.advanceTimersByTime(900);
  expect(isLong()).toBe(false);
  set(true);
  vi.advanceTimersByTime(1_000);
  expect(isLong()).toBe(true);
  set(false);
  expect(isLong()).toBe(false);
  vi.useRealTimers();
});
