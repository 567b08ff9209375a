import { expect, it } from "vitest";
import { isHeard } from "../../src/main/ui/diagnosis";
import { whyUnheard } from "../../src/main/ui/own-words";

it("says why nobody hears one, whenever nobody does", () => {
  const heard = { microphone: "on", selfMuted: false, mutedByOwner: false, inputMuted: false } as const;
  const changes = [
    [{}, null],
    [{ microphone: "unasked" }, "Nobody hears you: you only listen."],
    [{ microphone: "ended", selfMuted: true }, "Nobody hears you: the microphone is gone."],
    [{ selfMuted: true }, "You are muted: nobody hears you."],
    [{ mutedByOwner: true }, "The owner has muted you: nobody hears you."],
    [{ inputMuted: true }, "The browser or the system has muted you: nobody hears you."],
  ] as const;
  for (const [change, words] of changes) {
    const state = { ...heard, ...change };
    expect(whyUnheard(state)).toBe(words);
    expect(isHeard(state)).toBe(words === null);
  }
});
