/** One polite live region for the whole page: who came, who went, what was copied. */

import { createSignal, For } from "solid-js";

/** Long enough to be taken up by a screen reader, short enough not to be found by one that reads the page. */
const KEPT_MS = 5_000;

const [said, setSaid] = createSignal<readonly { message: string }[]>([]);

/** What was said lately. */
export { said };

/** Says it once, after what was said before. The same words twice in a row are said twice. */
export function announce(message: string): void {
  const saying = { message };
  setSaid((before) => [...before, saying]);
  setTimeout(() => setSaid((before) => before.filter((other) => other !== saying)), KEPT_MS);
}

export function Announcer() {
  return (
    <div class="visually-hidden" role="status" aria-live="polite" aria-atomic="false">
      <For each={said()}>{({ message }) => <p>{message}</p>}</For>
    </div>
  );
}
