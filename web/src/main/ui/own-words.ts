/** What oneself is and what changes for oneself in the room, in words. */

import type { StudioState } from "../model";

/** Why nobody hears one who is not muted. */
export const unheardWords: Record<StudioState["microphone"], string> = {
  unasked: "you only listen.",
  asking: "the browser asks first whether this page may.",
  on: "",
  refused: "the browser blocks the microphone.",
  none: "the microphone was not found.",
  busy: "the microphone is in use elsewhere, or does not answer.",
  failed: "the microphone could not be opened.",
  mismatched: "the browser records at another rate than the room's.",
  ended: "the microphone is gone.",
};

/** What says whether one is heard. */
export type Unheard = Pick<
  StudioState,
  "microphone" | "selfMuted" | "mutedByOwner" | "inputMuted" | "captures"
>;

/** Why nobody hears one, in a sentence; null for who is heard. */
export function whyUnheard(state: Unheard): string | null {
  const { microphone, selfMuted, mutedByOwner, inputMuted, captures } = state;
  if (microphone !== "on") return `Nobody hears you: ${unheardWords[microphone]}`;
  if (selfMuted) return "You are muted: nobody hears you.";
  if (mutedByOwner) return "The owner has muted you: nobody hears you.";
  if (inputMuted) return "The browser or the system has muted you: nobody hears you.";
  if (!captures) return "The sound does not run: nobody hears you.";
  return null;
}

/** What one is to know however far one has scrolled: that nobody hears one, that the server is gone, or both. Null while neither is so. */
export function barWords(state: Unheard, isServerGone: boolean): string | null {
  const words = [whyUnheard(state), isServerGone ? "The server does not answer." : null];
  return words.filter((sentence) => sentence !== null).join(" ") || null;
}

type Own = Unheard & Pick<StudioState, "phase" | "locked" | "roomPassphrase" | "heldBack" | "isOwner">;

/**
 * For those who do not see it, one sentence for each change while in the room: how it was found is none. What keeps one from being heard, an alert says;
 * that it is over, only this.
 */
export function ownChanges(before: Own | undefined, now: Own): string[] {
  if (before?.phase !== "joined" || now.phase !== "joined") return [];
  const sentences: string[] = [];
  if (now.locked !== before.locked)
    sentences.push(now.locked ? "The room is locked." : "The room is unlocked.");
  else if (now.roomPassphrase !== before.roomPassphrase) sentences.push("The passphrase is changed.");
  if (before.mutedByOwner && !now.mutedByOwner) sentences.push("The owner lets you be heard again.");
  // Whoever unmutes oneself is told by what does it.
  else if (whyUnheard(before) !== null && whyUnheard(now) === null && !before.selfMuted)
    sentences.push(before.microphone === "asking" ? "You are heard now." : "You are heard again.");
  if (before.heldBack && !now.heldBack) sentences.push("The sound runs.");
  if (now.isOwner && !before.isOwner) sentences.push("You are the room's owner now.");
  return sentences;
}
