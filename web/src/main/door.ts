/** At the door of a room that is locked. */

/** Why one does not come in: a passphrase is needed, or was wrong, or was not even looked at after too many wrong ones. */
export type Stopped = "needed" | "wrong" | "rationed";

/** By the server's error; null if that is of something else. `wasIn`: before; then one comes back without being asked. */
export function stoppedBy(code: string, hasSaid: boolean, wasIn: boolean): Stopped | null {
  if (code === "passphrase") return hasSaid ? "wrong" : "needed";
  return code === "too_fast" && !wasIn ? "rationed" : null;
}

export const doorWords: Record<Stopped, string> = {
  needed: "The room is locked. Its owner can tell you the passphrase.",
  wrong: "That is not the passphrase. Ask the room's owner, and try again.",
  rationed:
    "There were too many wrong passphrases for this room, from here or elsewhere. Wait a minute, then try again.",
};
