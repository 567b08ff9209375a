/** The way that a participant's sound takes, in words, and what of its changes is worth saying. */

import type { PeerStats } from "../../shared/stats";

type Path = NonNullable<PeerStats["path"]>;

const ways: Record<Path, string> = {
  direct: "directly",
  relay: "through the server",
  both: "both directly and through the server",
  mix: "mixed by the server",
};

/** What is, and why, if it is not what one would expect. */
export function pathWords({ path, pin, lanes }: Pick<PeerStats, "path" | "pin" | "lanes">): string {
  if (path === null) return "Nothing arrives at the moment.";
  if (pin !== "auto" && path !== pin) return `Arrives ${ways[path]}, until the chosen path carries it.`;
  if (path === "mix") return `Arrives ${ways.mix}, which does not tell its level.`;
  const isWithoutDirect = pin === "auto" && path === "relay" && !lanes.some(({ state }) => state === "open");
  return isWithoutDirect ? `Arrives ${ways.relay}: no direct way is open.` : `Arrives ${ways[path]}.`;
}

/** For how long a path must have lasted before it is said: what flickers between two is not worth a word. */
const SETTLED_MS = 2_000;

/** Changes of path, for those who do not see them. That a second way is kept warm beside the direct one is no change. */
export class PathChanges {
  readonly #said = new Map<string, Path>();
  readonly #seen = new Map<string, { path: Path; sinceMs: number }>();

  /** @returns one sentence for each change that has settled by now; how a peer came first is none. */
  add(timeMs: number, peers: readonly Pick<PeerStats, "id" | "name" | "path">[]): string[] {
    return peers.flatMap(({ id, name, path: now }) => {
      // Silence is said by the connection, if it lasts.
      if (now === null) return [];
      const path = now === "both" ? "direct" : now;
      if (this.#seen.get(id)?.path !== path) this.#seen.set(id, { path, sinceMs: timeMs });
      const said = this.#said.get(id);
      if (path === said || timeMs - this.#seen.get(id)!.sinceMs < SETTLED_MS) return [];
      this.#said.set(id, path);
      return said === undefined ? [] : [`${name} now comes ${ways[path]}.`];
    });
  }
}
