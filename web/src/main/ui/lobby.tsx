/** Before the door: a name, a microphone that works, and then in. */

import { createEffect, createMemo, createUniqueId, Match, on, Show, Switch } from "solid-js";
import { doorWords, type Stopped } from "../door";
import { Icon } from "./icon";
import { InputCheck } from "./input-check";
import { createLasting } from "./lasting";
import { LoopBack } from "./loop-back";
import { MicrophoneButton } from "./microphone-button";
import { unheardWords } from "./own-words";
import { PageTitle } from "./page-title";
import { Problems } from "./problems";
import { AdvancedFields, DeviceFields, NameField } from "./sound-settings";
import { useView } from "./view";

/** Who joins for so long may wait for what never comes: an answer to the browser's question, a file of the page, the server's welcome. */
const LONG_JOIN_MS = 5_000;

export function Lobby() {
  const view = useView();
  const microphone = createMemo(() => view.state().microphone);
  /** Also where one of them does not open, so that another can be chosen; and while the browser asks about that one. */
  const knowsDevices = createMemo<boolean>(
    (before) =>
      microphone() === "asking" ? before : microphone() !== "unasked" && microphone() !== "refused",
    false,
  );
  const joining = createMemo(() => view.state().phase === "joining");
  const isLong = createLasting(joining, LONG_JOIN_MS);
  /** Though the words of that be dismissed. */
  const isServerGone = createMemo<boolean>(
    (before) => joining() && (before || view.problems().some(({ id }) => id === "server-gone")),
    false,
  );
  const muted = createMemo(() => microphone() === "on" && view.state().selfMuted);
  const asked = createMemo(() => {
    const { passphrase } = view.state();
    return passphrase === "none" ? null : passphrase;
  });

  const join = (event: SubmitEvent) => {
    event.preventDefault();
    if (joining()) return;
    const fields = new FormData(event.currentTarget as HTMLFormElement);
    const name = fields.get("name");
    const passphrase = fields.get("passphrase");
    void view.attempt(async () => {
      if (typeof name === "string" && name.trim() !== view.state().settings.name) {
        await view.studio.change({ name: name.trim() });
      }
      await view.studio.join(typeof passphrase === "string" && passphrase !== "" ? { passphrase } : {});
    });
  };

  return (
    <form class="lobby" onSubmit={join}>
      <PageTitle>Ready to play?</PageTitle>
      <Problems severity="error" />
      <div class="card fields">
        <NameField />
        <Show when={asked()}>{(why) => <PassphraseField why={why()} />}</Show>
      </div>
      <section class="card" aria-labelledby="lobby-sound">
        <h2 id="lobby-sound">Your sound</h2>
        <Show when={microphone() === "on"} fallback={<MicrophoneStep />}>
          <InputCheck spoken={true} />
        </Show>
        <Show when={knowsDevices()}>
          <div class="fields">
            <DeviceFields />
            <Headphones />
          </div>
        </Show>
        <Show when={microphone() === "on"}>
          <LoopBack />
        </Show>
        <details class="disclosure">
          <summary>Advanced</summary>
          <AdvancedFields />
        </details>
      </section>
      <div class="aside">
        <Problems severity="warning" />
        <Problems severity="advice" />
      </div>
      <div class="join">
        <button
          type="submit"
          class="button large"
          classList={{ primary: microphone() === "on" }}
          aria-disabled={joining()}
        >
          {joining() ? "Joining…" : microphone() === "on" ? "Join" : "Join and only listen"}
          <Icon name="arrow-right" />
        </button>
        <Show when={isLong() || isServerGone()}>
          <button type="button" class="button" onClick={() => view.studio.stopJoining()}>
            Cancel
          </button>
        </Show>
        {/* As one was in the room. */}
        <Show when={muted()}>
          <button type="button" class="button" onClick={() => view.studio.setSelfMuted(false)}>
            <Icon name="mic" />
            Unmute me
          </button>
        </Show>
        <p class="hint" role="status">
          <Switch>
            <Match when={isServerGone()}>Waiting for the server…</Match>
            <Match when={joining()}>Opening the door…</Match>
            <Match when={muted()}>You are muted: nobody will hear you before you unmute yourself.</Match>
            <Match when={microphone() === "on" && view.state().captures}>
              The others hear you as soon as you are in.
            </Match>
            <Match when={microphone() !== "on"}>
              Without a microphone you hear the others, and they do not hear you.
            </Match>
          </Switch>
        </p>
      </div>
    </form>
  );
}

function PassphraseField(props: { why: Stopped }) {
  const view = useView();
  const id = createUniqueId();
  const refusals = createMemo(() => view.state().refusals);
  let field!: HTMLInputElement;
  createEffect(
    on(refusals, () =>
      queueMicrotask(() => {
        field.focus();
        field.select();
      }),
    ),
  );
  return (
    <div class="field">
      <label for={id}>The room's passphrase</label>
      <input
        ref={field}
        id={id}
        name="passphrase"
        type="password"
        maxlength="128"
        required
        autocomplete="off"
        autocapitalize="off"
        autocorrect="off"
        spellcheck={false}
        aria-describedby={`${id}-hint`}
        aria-invalid={props.why === "wrong"}
      />
      {/* Anew each time, for a screen reader says what enters the page. */}
      <Show when={refusals()} keyed>
        {(_) => (
          <p class={props.why === "needed" ? "hint" : "muted-words"} id={`${id}-hint`} role="alert">
            {doorWords[props.why]}
          </p>
        )}
      </Show>
    </div>
  );
}

function Headphones() {
  return (
    <p class="headphones">
      <Icon name="headphones" />
      <span>Wear headphones: from loudspeakers the others would hear themselves back.</span>
    </p>
  );
}

function MicrophoneStep() {
  const view = useView();
  const microphone = () => view.state().microphone;
  /** Why, above. */
  const isSaid = createMemo(() =>
    view.problems().some(({ id }) => id === "microphone" || id === "microphone-ended"),
  );
  return (
    <div class="microphone-step">
      <p role="status">
        <Switch>
          <Match when={microphone() === "unasked"}>
            {view.state().microphoneAllowed
              ? "You have allowed this page to hear you."
              : "The browser will ask whether this page may hear you."}{" "}
            Your sound goes to the people in the room, directly and also through this server, and is kept
            nowhere.
          </Match>
          <Match when={microphone() === "asking"}>
            Answer the browser's question: it is near the address bar. Choose “Allow”.
          </Match>
          <Match when={isSaid()}>Nobody will hear you.</Match>
          <Match when={true}>Nobody will hear you: {unheardWords[microphone()]}</Match>
        </Switch>
      </p>
      <MicrophoneButton large={true} />
    </div>
  );
}
