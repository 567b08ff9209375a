/** What changes for oneself in the room, in words, for those who do not see it. */

import type { StudioState } from "../model";

type Own = Pick<StudioState, "phase" | "locked" | "mutedByOwner" | "isOwner">;

/** One sentence for each change while in the room: how it was found is none. That one is muted, an alert says. */
export function ownChanges(before: Own | undefined, now: Own): string[] {
  if (before?.phase !== "joined" || now.phase !== "joined") return [];
  const sentences: string[] = [];
  if (now.locked !== before.locked)
    sentences.push(now.locked ? "The room is locked." : "The room is open again.");
  if (before.mutedByOwner && !now.mutedByOwner) sentences.push("The owner lets you be heard again.");
  if (now.isOwner && !before.isOwner) sentences.push("You are the room's owner now.");
  return sentences;
}
