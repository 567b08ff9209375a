/** The way that a participant's sound takes: which it is now, in words, and the choice of it. */

import { createMemo, For } from "solid-js";
import type { Pin } from "../../shared/engine";
import type { PeerStats } from "../../shared/stats";
import { useView } from "./view";

const pathWords: Record<NonNullable<PeerStats["path"]>, string> = {
  direct: "Comes directly",
  relay: "Comes through the server",
  both: "Comes both directly and through the server",
  mix: "Comes mixed by the server",
};

const pins: readonly (readonly [Pin, string])[] = [
  ["auto", "Automatic"],
  ["direct", "Direct"],
  ["relay", "Through the server"],
  ["mix", "Mixed by the server"],
];

export function PathChoice(props: { id: string; name: string; pin: Pin; onChoice: (pin: Pin) => void }) {
  const view = useView();
  const words = createMemo(() => {
    const peer = view.stats()?.peers.find(({ id }) => id === props.id);
    return peer === undefined ? "" : describe(peer);
  });
  return (
    <>
      <label class="strip-choice">
        <span>Path</span>
        <select
          aria-label={`Path of ${props.name}`}
          onChange={(event) => {
            const chosen = pins.find(([pin]) => pin === event.currentTarget.value);
            if (chosen !== undefined) props.onChoice(chosen[0]);
          }}
        >
          <For each={pins}>
            {([pin, words]) => (
              <option value={pin} selected={pin === props.pin}>
                {words}
              </option>
            )}
          </For>
        </select>
      </label>
      <p class="hint path-words">{words()}</p>
    </>
  );
}

/** What is, and why, if it is not what one would expect. */
function describe({ path, pin, lanes }: PeerStats): string {
  if (path === null) return "Nothing comes yet.";
  if (pin !== "auto" && path !== pin) return `${pathWords[path]}, until the chosen path carries it.`;
  const isWithoutDirect = path === "relay" && !lanes.some(({ state }) => state === "open");
  return isWithoutDirect
    ? `${pathWords[path]}: there is no direct way through the networks between you.`
    : `${pathWords[path]}.`;
}
