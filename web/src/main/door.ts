/** At the door: of a room that is locked, and of a server that lets nobody in. */

import type { Trouble } from "./signalling";

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

/** What keeps one at the door, and what to do. */
export const closedDoorWords: Record<Trouble, { title: string; remedy: string }> = {
  silent: {
    title: "The server does not answer.",
    remedy: "It may have stopped, or this computer has lost its network. The page keeps trying by itself.",
  },
  refuses: {
    title: "The server answers, but does not let you in.",
    remedy:
      "There may be as many connections from your network as it allows, or something on the way, such as a proxy or a filter, lets no WebSocket through. The page keeps trying by itself; whoever runs the server finds the reason in its metrics.",
  },
};
