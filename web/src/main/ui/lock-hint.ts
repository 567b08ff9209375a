/** The lock on the door, in words. */

import type { StudioState } from "../model";

/** What the owner is to know of the lock. @param removed whom the owner has just removed */
export function lockHint(
  { locked, roomPassphrase }: Pick<StudioState, "locked" | "roomPassphrase">,
  removed: string | null,
): string {
  if (!locked)
    return removed === null
      ? "From then on who comes in must know it. Those who are in stay in."
      : `You removed ${removed}. The link still lets them in; a passphrase keeps them out.`;
  const told = `Tell the passphrase to those whom you invite: ${roomPassphrase ?? ""}`;
  return removed === null
    ? told
    : `You removed ${removed}, who may know the passphrase. A new one keeps them out. ${told}`;
}
