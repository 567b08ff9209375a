/** What the room's owner may do for everyone. */

import { createEffect, createSignal, createUniqueId, onCleanup, Show } from "solid-js";
import type { Participant } from "../model";
import { Icon } from "./icon";
import { lockHint } from "./lock-hint";
import { useView } from "./view";

/** Whom the owner has just removed: the link still lets them in, so the lock is offered. */
const [removed, setRemoved] = createSignal<string | null>(null);

/** The owner's buttons on a participant's strip. */
export function Moderation(props: { participant: Participant; name: string }) {
  const { studio, state } = useView();
  let sentAway: string | null = null;
  onCleanup(() => {
    if (sentAway !== null && state().phase === "joined") setRemoved(sentAway);
  });
  const [isAsking, setAsking] = createSignal(false);
  let remove: HTMLButtonElement | undefined;
  const keep = () => {
    sentAway = null;
    setAsking(false);
    remove?.focus();
  };
  const act = (action: "mute" | "unmute" | "remove") => studio.moderate(props.participant.id, action);
  return (
    <div class="toggles">
      <button
        type="button"
        class="button toggle mute"
        aria-pressed={props.participant.mutedByOwner}
        aria-label={`Mute for everyone: ${props.name}`}
        onClick={() => act(props.participant.mutedByOwner ? "unmute" : "mute")}
      >
        Mute for everyone
      </button>
      <Show
        when={isAsking()}
        fallback={
          <button
            type="button"
            class="button"
            aria-label={`Remove ${props.name} from the room`}
            ref={(button) => {
              remove = button;
            }}
            onClick={() => setAsking(true)}
          >
            Remove
          </button>
        }
      >
        {/* Twice, for it cannot be undone. First what keeps them, and wider: the second click of two comes there. */}
        <button
          type="button"
          class="button quiet"
          aria-label={`Keep them in the room: ${props.name}`}
          ref={(button) => queueMicrotask(() => button.focus())}
          onClick={keep}
        >
          Keep them
        </button>
        <button
          type="button"
          class="button"
          aria-label={`Really remove ${props.name} from the room`}
          onClick={() => {
            if (act("remove")) sentAway = props.name;
          }}
        >
          Really remove
        </button>
      </Show>
    </div>
  );
}

/** The owner's lock on the door; for the others, whether there is one. */
export function Lock() {
  const view = useView();
  const id = createUniqueId();
  const locked = () => view.state().locked;
  let details: HTMLDetailsElement | undefined;
  let field!: HTMLInputElement;
  const lock = (event: SubmitEvent) => {
    event.preventDefault();
    if (!view.studio.lock(field.value)) return;
    field.value = "";
    setRemoved(null);
  };
  /** The server takes none that is empty, and it is sent without what is blank at its ends. */
  const check = () => {
    const isBlank = field.value.trim() === "";
    field.setCustomValidity(isBlank ? "Type a passphrase that is more than spaces." : "");
  };
  onCleanup(() => setRemoved(null));
  createEffect(() => {
    if (removed() === null || details === undefined) return;
    details.open = true;
    field.focus();
  });
  return (
    <Show
      when={view.state().isOwner}
      fallback={
        <Show when={locked()}>
          <p class="hint">The room is locked: who comes in needs its passphrase.</p>
        </Show>
      }
    >
      <details
        class="disclosure"
        ref={(element) => {
          details = element;
        }}
        onToggle={(event) => !event.currentTarget.open && setRemoved(null)}
      >
        <summary>{locked() ? "The room is locked" : "Lock the room"}</summary>
        <form class="lock" onSubmit={lock}>
          <div class="field">
            <label for={id}>{locked() ? "New passphrase" : "Passphrase to come in"}</label>
            <input
              ref={field}
              id={id}
              type="text"
              maxlength="128"
              required
              autocomplete="off"
              autocapitalize="off"
              autocorrect="off"
              spellcheck={false}
              aria-describedby={`${id}-hint`}
              onInput={check}
            />
          </div>
          <button type="submit" class="button">
            <Icon name="lock" />
            {locked() ? "Change the passphrase" : "Lock the room"}
          </button>
          <Show when={locked()}>
            <button type="button" class="button" onClick={() => view.studio.lock(null)}>
              Unlock the room
            </button>
          </Show>
          <p class="hint" id={`${id}-hint`}>
            {lockHint(view.state(), removed())}
          </p>
        </form>
      </details>
    </Show>
  );
}
