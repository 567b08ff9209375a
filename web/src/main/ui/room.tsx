/** The room: who is in it, how they sound, and how to bring others in. */

import { createMemo, For, Show } from "solid-js";
import { announce } from "./announcer";
import { CopyButton } from "./copy-button";
import { isHeard } from "./diagnosis";
import { MixAdvice, OwnFigures } from "./figures";
import { Icon } from "./icon";
import { InputCheck } from "./input-check";
import { MicrophoneButton } from "./microphone-button";
import { Lock } from "./moderation";
import { whyUnheard } from "./own-words";
import { PageTitle } from "./page-title";
import { ParticipantStrip } from "./participant";
import { Problems } from "./problems";
import { AdvancedFields, DeviceFields, NameField } from "./sound-settings";
import { createIds, useView } from "./view";

export function Room() {
  const view = useView();
  const participants = createMemo(() => view.state().participants);
  const ids = createIds(participants);
  const others = createMemo(() => participants().filter((p) => !p.isLoop).length);

  return (
    <div class="room">
      <PageTitle class="visually-hidden">The room</PageTitle>
      <Problems severity="error" />
      <Problems severity="warning" />
      <OwnStrip alone={others() === 0} />
      <section class="others" aria-labelledby="others-heading">
        <div class="others-head">
          <h2 id="others-heading">{others() === 0 ? "Nobody else is here yet" : `With you: ${others()}`}</h2>
          <Invite alone={others() === 0} />
        </div>
        <MixAdvice />
        <ul class="strips">
          <For each={ids()}>{(id) => <ParticipantStrip id={id} participants={participants} />}</For>
        </ul>
      </section>
      <Problems severity="advice" />
    </div>
  );
}

/** Mutes or unmutes oneself, and says so: the shortcut works from anywhere. */
export function toggleSelfMuted(view: ReturnType<typeof useView>): void {
  const muted = !view.state().selfMuted;
  view.studio.setSelfMuted(muted);
  if (muted) announce("You are muted.");
  else announce(isHeard(view.state()) ? "You are heard again." : "You are not muted, but nobody hears you.");
}

/** In the page's bar, where it stays in reach however far one has scrolled. */
export function MuteMyself() {
  const view = useView();
  const muted = createMemo(() => view.state().selfMuted);
  return (
    <button
      type="button"
      class="button toggle mute"
      aria-pressed={muted()}
      aria-keyshortcuts="M"
      onClick={() => toggleSelfMuted(view)}
    >
      <Icon name={muted() ? "mic-off" : "mic"} />
      <span class="label">Mute me</span>
    </button>
  );
}

function OwnStrip(props: { alone: boolean }) {
  const view = useView();
  const muted = createMemo(() => view.state().selfMuted);
  const microphone = createMemo(() => view.state().microphone);
  const heardBy = createMemo(() => {
    const { participants, heldBack } = view.state();
    const why = whyUnheard(view.state());
    if (why !== null) return why;
    if (heldBack) return "You are not muted, but the sound has not started.";
    if (props.alone) return "You are not muted. Nobody else is here yet.";
    const others = participants.filter(({ isLoop, connection }) => !isLoop && connection !== "connected");
    if (others.length === 0) return "You are connected to everyone in the room.";
    return `You are not muted. Not connected: ${others.map(({ name }) => name).join(", ")}.`;
  });
  return (
    <section class="own card" aria-labelledby="own-heading">
      <div class="strip-head">
        <h2 id="own-heading">{view.state().settings.name}</h2>
        <p class="you">{view.state().isOwner ? "you, owner" : "you"}</p>
      </div>
      <Show
        when={microphone() === "on"}
        fallback={
          <>
            <p>{heardBy()}</p>
            <MicrophoneButton large={false} />
          </>
        }
      >
        <InputCheck spoken={false} />
        <p class={muted() || view.state().mutedByOwner ? "muted-words" : "hint"}>{heardBy()}</p>
      </Show>
      <details class="disclosure">
        <summary>Sound settings</summary>
        <div class="fields">
          <NameField />
          <DeviceFields />
        </div>
        <details class="disclosure">
          <summary>Advanced</summary>
          <AdvancedFields />
        </details>
      </details>
      <details class="disclosure">
        <summary>Your numbers</summary>
        <OwnFigures />
      </details>
      <Lock />
      <LoopToggle />
    </section>
  );
}

function LoopToggle() {
  const view = useView();
  const looping = createMemo(() => view.state().looping);
  return (
    <div class="loop">
      <button
        type="button"
        class="button toggle"
        aria-pressed={looping()}
        aria-describedby="loop-hint"
        onClick={() => void view.attempt(() => view.studio.setLoop(!looping()))}
      >
        <Icon name={looping() ? "check" : "repeat"} />
        Hear yourself through the network
      </button>
      <p class="hint" id="loop-hint">
        Test your own delay: your sound travels the whole way and comes back as late as the others would hear
        it. Put on headphones first, or it howls.
      </p>
    </div>
  );
}

/** Always the same one: whoever comes in may do so while its button is pressed. */
function Invite(props: { alone: boolean }) {
  const view = useView();
  const link = createMemo(() => view.state().link);
  let field!: HTMLInputElement;
  const share = () =>
    void navigator.share({ title: "Play with me on Antiphon", url: link() }).catch(() => {});
  return (
    <div class="invite" classList={{ "card prominent": props.alone }}>
      <Show when={props.alone}>
        <p class="lead">
          Send this link to the people you play with.{" "}
          {view.state().locked
            ? "Whoever opens it needs the room's passphrase, too."
            : "Whoever opens it can come in."}
        </p>
      </Show>
      <input
        ref={field}
        type="text"
        readonly
        aria-label="Invite link"
        value={link()}
        onFocus={(event) => event.currentTarget.select()}
      />
      <CopyButton text={link()} what="link" primary={props.alone} onRefused={() => field.focus()} />
      <Show when={"share" in navigator}>
        <button type="button" class="button" onClick={share}>
          <Icon name="share" />
          Share
        </button>
      </Show>
    </div>
  );
}
