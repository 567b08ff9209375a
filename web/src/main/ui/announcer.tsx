/** One polite live region for the whole page: who came, who went, what was copied. */

import { createSignal } from "solid-js";

const [text, setText] = createSignal("");

/** Says it once. The same words twice in a row are said twice. */
export function announce(message: string): void {
  setText((before) => (before === message ? `${message}\u00a0` : message));
}

export function Announcer() {
  return (
    <div class="visually-hidden" role="status" aria-live="polite">
      {text()}
    </div>
  );
}
