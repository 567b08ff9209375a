import { expect, it } from "vitest";
import { isHeard } from "../../src/main/ui/diagnosis";
import { barWords, ownChanges, whyUnheard } from "../../src/main/ui/own-words";

const heard = {
  microphone: "on",
  selfMuted: false,
  mutedByOwner: false,
  inputMuted: false,
  captures: true,
} as const;

it("says why nobody hears one, whenever nobody does", () => {
  const changes = [
    [{}, null],
    [{ microphone: "unasked" }, "Nobody hears you: you only listen."],
    [{ microphone: "ended", selfMuted: true }, "Nobody hears you: the microphone is gone."],
    [{ selfMuted: true }, "You are muted: nobody hears you."],
    [{ mutedByOwner: true }, "The owner has muted you: nobody hears you."],
    [{ inputMuted: true }, "The browser or the system has muted you: nobody hears you."],
    [{ captures: false }, "The sound does not run: nobody hears you."],
  ] as const;
  for (const [change, words] of changes) {
    const state = { ...heard, ...change };
    expect(whyUnheard(state)).toBe(words);
    expect(isHeard(state)).toBe(words === null);
  }
});

it("says in the bar that nobody hears one, and that the server is gone, and nothing while all is well", () => {
  expect(barWords(heard, false)).toBeNull();
  expect(barWords(heard, true)).toBe("The server does not answer.");
  const silenced = { ...heard, mutedByOwner: true };
  expect(barWords(silenced, false)).toBe("The owner has muted you: nobody hears you.");
  expect(barWords(silenced, true)).toBe(
    "The owner has muted you: nobody hears you. The server does not answer.",
  );
});

it("says that what kept one from being heard is over, unless that is said already", () => {
  const inRoom = { ...heard, phase: "joined", locked: false, roomPassphrase: null, isOwner: false } as const;
  const well = { ...inRoom, heldBack: false };
  const ends = [
    [{ microphone: "ended" }, ["You are heard again."]],
    [{ microphone: "busy" }, ["You are heard again."]],
    [{ microphone: "asking" }, ["You are heard now."]],
    [{ inputMuted: true }, ["You are heard again."]],
    [{ captures: false }, ["You are heard again."]],
    [{ heldBack: true }, ["The sound runs."]],
    [{ heldBack: true, captures: false }, ["You are heard again.", "The sound runs."]],
    [{ mutedByOwner: true }, ["The owner lets you be heard again."]],
    [{ selfMuted: true }, []],
  ] as const;
  for (const [before, sentences] of ends) {
    expect(ownChanges({ ...well, ...before }, well)).toEqual(sentences);
    expect(ownChanges(well, { ...well, ...before })).toEqual([]);
    expect(ownChanges({ ...well, ...before, phase: "joining" }, well)).toEqual([]);
  }
  expect(ownChanges({ ...well, microphone: "ended" }, { ...well, selfMuted: true })).toEqual([]);
  expect(ownChanges({ ...well, microphone: "ended" }, { ...well, captures: false })).toEqual([]);
});
