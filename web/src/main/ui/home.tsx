/** The start page: make a room, or enter one. */

import { createSignal, Show } from "solid-js";
import { Icon } from "./icon";
import { Stave, Wordmark } from "./mark";
import { newRoom, type RoomReference, readRoom } from "./room-link";

export function Home() {
  const [reference, setReference] = createSignal<RoomReference | null>(null);
  const enter = (room: string) => location.assign(`/r/${room}`);
  let field!: HTMLInputElement;

  const join = (event: SubmitEvent) => {
    event.preventDefault();
    const found = readRoom(field.value, location.origin);
    setReference(found);
    if (found.kind === "room") enter(found.room);
    else field.focus();
  };

  return (
    <div class="page home">
      <header class="bar">
        <Wordmark />
      </header>
      <main class="home-main">
        <Stave />
        <h1>Play together, from anywhere.</h1>
        <p class="lead">
          A music room in your browser: send a link, and whoever opens it plays with you live, sound
          uncompressed and, where the networks let it, straight from one to the other.
        </p>
        <button type="button" class="button primary huge" onClick={() => enter(newRoom())}>
          Create a room
          <Icon name="arrow-right" />
        </button>
        <p class="hint">Nothing to install, no account.</p>
        <form class="join-form" onSubmit={join} novalidate>
          <label for="join-link">Got a link?</label>
          <div class="join-row">
            <input
              id="join-link"
              ref={field}
              type="text"
              inputmode="url"
              autocomplete="off"
              autocapitalize="off"
              spellcheck={false}
              placeholder="Paste the link or the room's name"
              aria-describedby="join-error"
              aria-invalid={reference() !== null && reference()?.kind !== "room"}
            />
            <button type="submit" class="button">
              Join
            </button>
          </div>
          <p class="field-error" id="join-error" role="alert">
            {/* Anew each time, for a screen reader says what enters the page. */}
            <Show when={reference()} keyed>
              {(found) => <Refusal of={found} />}
            </Show>
          </p>
        </form>
      </main>
    </div>
  );
}

/** Why it leads nowhere. */
function Refusal(props: { of: RoomReference }) {
  const elsewhere = () => (props.of.kind === "elsewhere" ? props.of : null);
  return (
    <span>
      <Show when={props.of.kind === "empty"}>Paste the link you were sent first.</Show>
      <Show when={props.of.kind === "unreadable"}>
        That is not a room link. Part of it may be missing: ask for it again, and copy all of it. A room's
        link ends in 16 to 64 letters, digits, <code>-</code> or <code>_</code>.
      </Show>
      <Show when={elsewhere()}>
        {(found) => (
          <>
            This room is on another server: <a href={found().link}>open it on {found().host}</a>.
          </>
        )}
      </Show>
    </span>
  );
}
