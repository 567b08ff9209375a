/** The way that a participant's sound takes: which it is now, in words, and the choice of it. */

import { createMemo, For } from "solid-js";
import type { Pin } from "../../shared/engine";
import { pathWords } from "./path-words";
import { peerOf, useView } from "./view";

const pins: readonly (readonly [Pin, string])[] = [
  ["auto", "Automatic"],
  ["direct", "Direct"],
  ["relay", "Through the server"],
  ["mix", "Mixed by the server"],
];

export function PathChoice(props: { id: string; name: string; pin: Pin; onChoice: (pin: Pin) => void }) {
  const view = useView();
  const words = createMemo(() => {
    const peer = peerOf(view.stats(), props.id);
    return peer === null ? "" : pathWords(peer);
  });
  return (
    <>
      <label class="strip-choice">
        <span class="strip-choice-label">Path</span>
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
