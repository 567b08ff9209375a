/** A channel strip: one person's sound as it arrives, your mix of it, and how well it gets here. */

import { type Accessor, createMemo, createUniqueId, For, Show } from "solid-js";
import type { Buffer, Participant } from "../model";
import { GainFader, PanFader } from "./fader";
import { PeerFigures } from "./figures";
import { Meter, PeakWords } from "./meter";
import { Moderation } from "./moderation";
import { PathChoice } from "./path";
import { createRow, peerOf, useView } from "./view";

const connectionWords: Record<Participant["connection"], string> = {
  connecting: "Connecting…",
  connected: "Connected",
  interrupted: "Reconnecting…",
  failed: "No connection",
};

/** The name to show; the loop is oneself. */
export function participantName(participant: Participant): string {
  return participant.isLoop ? "You, through the network" : participant.name;
}

const buffers: readonly (readonly [Buffer, string])[] = [
  ["tight", "Tight: least delay"],
  ["auto", "Balanced"],
  ["safe", "Safe: fewest gaps"],
];

function BufferChoice(props: { name: string; buffer: Buffer; onChoice: (buffer: Buffer) => void }) {
  const fixed = () => (typeof props.buffer === "number" ? props.buffer : null);
  return (
    <label class="strip-choice">
      <span class="strip-choice-label">Buffer</span>
      <select
        aria-label={`Buffer for ${props.name}`}
        onChange={(event) => {
          const chosen = buffers.find(([buffer]) => buffer === event.currentTarget.value);
          if (chosen !== undefined) props.onChoice(chosen[0]);
        }}
      >
        <For each={buffers}>
          {([buffer, words]) => (
            <option value={buffer} selected={buffer === props.buffer}>
              {words}
            </option>
          )}
        </For>
        <Show when={fixed() !== null}>
          <option value="fixed" selected>
            Fixed: {fixed()} frames
          </option>
        </Show>
      </select>
    </label>
  );
}

/** Of more the strips show only what one plays by, so that all of them are seen soon. */
const MOST_IN_FULL = 4;

export function ParticipantStrip(props: { id: string; participants: Accessor<Participant[]> }) {
  const { studio, state, stats } = useView();
  // A strip is made for one id and never reused for another.
  const id = props.id;
  const participant = createRow(() => props.participants(), id);
  const name = createMemo(() => participantName(participant()));
  const soloElsewhere = createMemo(() => !participant().solo && props.participants().some((p) => p.solo));
  const silenced = () => {
    const { muted, mutedByOwner, gain } = participant();
    if (mutedByOwner) return `Muted for everyone${state().isOwner ? "" : " by the owner"}`;
    if (muted) return "Muted for you";
    if (soloElsewhere()) return "Silent: another has solo";
    return gain === 0 ? "Silent: the gain is all the way down" : "";
  };
  const isMixed = createMemo(() => peerOf(stats(), id)?.path === "mix");
  const gone = () => !participant().present && !participant().isLoop;
  const headingId = createUniqueId();
  let strip!: HTMLLIElement;
  /** What has the focus stays where it is. */
  const isBrief = createMemo<boolean>((before) => {
    const isCrowded = props.participants().filter(({ isLoop }) => !isLoop).length > MOST_IN_FULL;
    return before !== undefined && strip.matches(":focus-within") ? before : isCrowded;
  });
  const canModerate = createMemo(() => state().isOwner && !participant().isLoop);

  return (
    <li ref={strip} class="strip card" data-participant={id}>
      <section aria-labelledby={headingId}>
        <div class="strip-head">
          <h3 id={headingId}>{name()}</h3>
          <Show when={participant().isOwner}>
            <p class="you">owner</p>
          </Show>
          <p class={`connection ${participant().connection}`}>{connectionWords[participant().connection]}</p>
        </div>
        <Show when={gone() || participant().connection === "failed"}>
          <p class="hint">
            {gone()
              ? "They lost the server. Sound may go on; they are given a moment to come back."
              : participant().isLoop
                ? "Your browser found no way to itself. Turn the test off and on again."
                : state().signalling === "online"
                  ? "No way through the networks between you was found. Ask them to reload the page, or try another network."
                  : "No direct way to them is open, and the server is gone. They are heard again when it is back."}
          </p>
        </Show>
        <Meter read={(levels) => levels.participant(id)} channels={2} dimmed={silenced() !== ""} />
        {/* The server's mix does not tell. */}
        <Show when={!isMixed()}>
          <PeakWords read={(levels) => levels.participant(id)} class="visually-hidden" />
        </Show>
        <div class="strip-controls">
          <div class="toggles">
            <button
              type="button"
              class="button toggle mute"
              aria-pressed={participant().muted}
              aria-label={`Mute ${name()}`}
              onClick={() => studio.setMuted(id, !participant().muted)}
            >
              Mute
            </button>
            <button
              type="button"
              class="button toggle solo"
              aria-pressed={participant().solo}
              aria-label={`Solo ${name()}`}
              onClick={() => studio.setSolo(id, !participant().solo)}
            >
              Solo
            </button>
            <p class="silenced">{silenced()}</p>
          </div>
          <GainFader name={name()} gain={participant().gain} onGain={(gain) => studio.setGain(id, gain)} />
          <PanFader name={name()} pan={participant().pan} onPan={(pan) => studio.setPan(id, pan)} />
          <Show when={canModerate() && !isBrief()}>
            <Moderation participant={participant()} name={name()} />
          </Show>
        </div>
        <PeerFigures
          id={id}
          name={name()}
          from={participant().isLoop ? "yourself" : "them"}
          isSilenced={participant().mutedByOwner}
          brief={isBrief()}
        >
          <Show when={canModerate() && isBrief()}>
            <Moderation participant={participant()} name={name()} />
          </Show>
          <BufferChoice
            name={name()}
            buffer={participant().buffer}
            onChoice={(buffer) => studio.setBuffer(id, buffer)}
          />
          <Show when={!participant().isLoop}>
            <PathChoice
              id={id}
              name={name()}
              pin={participant().pin}
              onChoice={(pin) => studio.setPin(id, pin)}
            />
          </Show>
        </PeerFigures>
      </section>
    </li>
  );
}
