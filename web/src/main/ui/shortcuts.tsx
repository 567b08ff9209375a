/** Single-key shortcuts, their list, and a switch to turn them off (speech input and some screen readers type keys). */

import { createSignal, onCleanup, onMount } from "solid-js";
import { keepText, readText } from "../storage";
import { Icon } from "./icon";
import { toggleSelfMuted } from "./room";
import { useView } from "./view";

const STORAGE_KEY = "antiphon.shortcuts";

export function Shortcuts() {
  const view = useView();
  const [enabled, setEnabled] = createSignal(readText(STORAGE_KEY) !== "off");
  let dialog!: HTMLDialogElement;

  const onKeyDown = (event: KeyboardEvent) => {
    if (
      !enabled() ||
      event.repeat ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      isTyping(event.target)
    )
      return;
    if (event.key === "?") dialog.open ? dialog.close() : dialog.showModal();
    else if (event.key.toLowerCase() === "m" && !dialog.open && view.state().phase === "joined")
      toggleSelfMuted(view);
    else return;
    event.preventDefault();
  };
  onMount(() => document.addEventListener("keydown", onKeyDown));
  onCleanup(() => document.removeEventListener("keydown", onKeyDown));

  return (
    <>
      <button type="button" class="button quiet keyboard" onClick={() => dialog.showModal()}>
        <Icon name="keyboard" />
        <span class="label">Shortcuts</span>
      </button>
      <dialog ref={dialog} class="dialog" aria-labelledby="shortcuts-heading">
        <h2 id="shortcuts-heading">Shortcuts</h2>
        <dl class="keys">
          <dt>
            <kbd>M</kbd>
          </dt>
          <dd>mute or unmute yourself</dd>
          <dt>
            <kbd>?</kbd>
          </dt>
          <dd>show or close this list</dd>
          <dt>
            <kbd>←</kbd> <kbd>→</kbd>
          </dt>
          <dd>move a gain or pan fader that has the focus</dd>
          <dt>
            <kbd>0</kbd>
          </dt>
          <dd>return that fader to 0 dB or centre; a double click does, too</dd>
        </dl>
        <label class="checkbox">
          <input
            type="checkbox"
            checked={enabled()}
            onChange={(event) => {
              setEnabled(event.currentTarget.checked);
              keepText(STORAGE_KEY, event.currentTarget.checked ? "on" : "off");
            }}
          />
          <span>Single keys M and ? work</span>
        </label>
        <button type="button" class="button primary" autofocus onClick={() => dialog.close()}>
          Close
        </button>
      </dialog>
    </>
  );
}

/** Where a letter belongs to the field. A slider or a checkbox takes no letters. */
function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.matches("textarea, select")) return true;
  return (
    target instanceof HTMLInputElement && !["range", "checkbox", "radio", "button"].includes(target.type)
  );
}
