import { expect, it, vi } from "vitest";
import { microphoneProblem } from "../../src/main/devices";

it("says that one was not found which was chosen only where one was", () => {
  vi.stubGlobal("navigator", {});
  const title = (name: string) => microphoneProblem(new DOMException("no", name)).title;
  expect(title("NotFoundError")).toBe("No microphone was found.");
  expect(title("OverconstrainedError")).toBe("The microphone that you chose was not found.");
  vi.unstubAllGlobals();
});
