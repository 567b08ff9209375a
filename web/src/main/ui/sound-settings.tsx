/** Devices and what is sent: in the lobby, and while playing. */

import { createMemo, createUniqueId, For, Index, type JSX, Show } from "solid-js";
import { MAX_TARGET_FRAMES } from "../../shared/messages";
import { OPUS_KBPS } from "../../shared/rungs";
import { QUANTA, type Settings } from "../model";
import { MAX_NAME_CHARACTERS } from "../settings";
import { deviceOptions } from "./device-options";
import { formatMs, formatRate, framesToMs } from "./format";
import { useView } from "./view";

const DEFAULT_RATE_HZ = 48_000;
const DEFAULT_BUFFER_FRAMES = 512;
const PACKETS = [16, 32, 64, 96, 128, 256, 512] as const;
const FORMATS = [
  ["16", "16 bit"],
  ["24", "24 bit"],
  ["32", "32 bit (float)"],
  ["opus", "Opus (compressed)"],
] as const;
const STEREO = 2;

/** As options of a choice. */
function numbers(least: number, most: number): [value: string, label: string][] {
  return Array.from({ length: most - least + 1 }, (_, n) => [String(least + n), String(least + n)]);
}

function useSettings() {
  const view = useView();
  // Fields are written when these change, not with each state and each figure: that would undo what is being typed.
  const settings = createMemo(() => view.state().settings);
  const rateHz = createMemo(() => view.stats()?.sampleRateHz ?? DEFAULT_RATE_HZ);
  return {
    settings,
    change: (settings: Partial<Settings>) => void view.attempt(() => view.studio.change(settings)),
    rateHz,
    ms: (frames: number) => formatMs(framesToMs(frames, rateHz())),
  };
}

export function NameField() {
  const view = useView();
  const { settings, change } = useSettings();
  const id = createUniqueId();
  return (
    <div class="field">
      <label for={id}>Your name</label>
      <input
        id={id}
        name="name"
        type="text"
        autocomplete="nickname"
        maxlength={MAX_NAME_CHARACTERS} // more would be cut off without a word; here those beyond the basic plane count as two
        placeholder="As the others know you"
        value={settings().name}
        onFocus={(event) => event.currentTarget.select()}
        onKeyDown={(event) => {
          // Without a word that nobody will hear one.
          if (view.state().microphone !== "on") enterGoesOn(event);
        }}
        onChange={(event) => {
          change({ name: event.currentTarget.value });
          event.currentTarget.value = settings().name;
        }}
      />
    </div>
  );
}

export function DeviceFields() {
  const view = useView();
  const { settings, change } = useSettings();
  return (
    <>
      <Choice
        label="Input"
        hint="Microphone, instrument or interface."
        value={settings().inputDeviceId}
        options={deviceOptions(view.state().inputs, settings().inputDeviceId, "The system's default input")}
        onChoice={(id) => change({ inputDeviceId: id })}
      />
      <Show
        when={view.state().outputSelectable}
        fallback={
          <p class="hint">
            Output: this browser plays on the system's default device. Choose headphones in the system's
            settings.
          </p>
        }
      >
        <Choice
          label="Output"
          hint="Best: wired headphones."
          value={settings().outputDeviceId}
          options={deviceOptions(
            view.state().outputs,
            settings().outputDeviceId,
            "The system's default output",
          )}
          onChoice={(id) => change({ outputDeviceId: id })}
        />
      </Show>
      <ChannelsField />
    </>
  );
}

function ChannelsField() {
  const { settings, change } = useSettings();
  const name = createUniqueId();
  return (
    <fieldset class="field">
      <legend>You send</legend>
      <div class="segments">
        <For each={["Mono", "Stereo"]}>
          {(label, i) => (
            <label>
              <input
                type="radio"
                name={name}
                checked={settings().channels === i() + 1}
                onKeyDown={enterGoesOn}
                onChange={() => change({ channels: i() + 1 })}
              />
              <span>{label}</span>
            </label>
          )}
        </For>
      </div>
      <p class="hint">
        <Show when={settings().channels > 2} fallback="Stereo for a keyboard or two microphones.">
          {settings().channels} channels, set under Advanced.
        </Show>
      </p>
    </fieldset>
  );
}

/** Numbers that the defaults get right for most. */
export function AdvancedFields() {
  const view = useView();
  const { settings, change, ms, rateHz } = useSettings();
  const playing = () => view.state().phase === "joined";
  return (
    <>
      <p class="hint">
        The defaults suit most rooms. Times are at {formatRate(rateHz())}. Smaller numbers mean less delay,
        and more risk of gaps.
      </p>
      <div class="fields">
        <Choice
          label="More channels"
          hint="For an interface with more than two inputs: how many of them you send."
          value={String(Math.max(STEREO, settings().channels))}
          options={[[String(STEREO), "No, mono or stereo"], ...numbers(STEREO + 1, 8)]}
          onChoice={(value) => change({ channels: Number(value) })}
        />
        <Choice
          label="Sample format"
          hint="Bits of each sample. 16 is CD quality; more costs more upload. Opus costs a tenth, and a few milliseconds."
          value={String(settings().bits)}
          options={FORMATS}
          onChoice={(value) =>
            change({ bits: value === "opus" ? value : (Number(value) as Settings["bits"]) })
          }
        />
        <Show when={settings().bits === "opus"}>
          <Choice
            label="Opus quality"
            hint="In mono or stereo at 48 kHz, in packets of 2.5, 5 or 10 ms."
            value={String(settings().opusKbps)}
            options={OPUS_KBPS.map((n) => [String(n), `${n} kbit/s`])}
            onChoice={(value) => change({ opusKbps: Number(value) as Settings["opusKbps"] })}
          />
        </Show>
        <Choice
          label="If the connection is too slow"
          hint="To a player whose connection cannot carry this format, you send a cheaper one until it can."
          value={settings().adapt}
          options={[
            ["auto", "Step down"],
            ["off", "Keep the format"],
          ]}
          onChoice={(value) => change({ adapt: value as Settings["adapt"] })}
        />
        <Choice
          label="Lost-packet insurance"
          hint="Each packet carries a cheap copy of the one before, heard if that is lost: for a quarter more upload, and a packet more delay where some are lost. Opus is sent twice instead."
          value={settings().copies}
          options={[
            ["auto", "Where packets are lost"],
            ["on", "Always"],
            ["off", "Never"],
          ]}
          onChoice={(value) => change({ copies: value as Settings["copies"] })}
        />
        <Choice
          label="Packet"
          hint="Sound collected before it is sent. Smaller means sooner, and more packets."
          value={String(settings().packet)}
          options={withCurrent(PACKETS, settings().packet).map((n) => [String(n), `${n} frames (${ms(n)})`])}
          onChoice={(value) => change({ packet: Number(value) })}
        />
        <Choice
          label="Block size"
          hint={
            playing()
              ? "Sound the browser computes at a time. To change it, leave the room and check your sound."
              : "Sound the browser computes at a time. Not every browser follows."
          }
          value={String(settings().quantum)}
          options={QUANTA.map((n) => [String(n), `${n} frames (${ms(n)})`])}
          disabled={playing()}
          onChoice={(value) => change({ quantum: Number(value) as Settings["quantum"] })}
        />
        <BufferField />
        <Choice
          label="Lanes"
          hint="Parallel connections to each player. More get through a lossy network better."
          value={String(settings().lanes)}
          options={[["auto", "Automatic"], ...numbers(1, 16)]}
          onChoice={(value) => change({ lanes: value === "auto" ? "auto" : Number(value) })}
        />
      </div>
    </>
  );
}

function BufferField() {
  const { settings, change, ms } = useSettings();
  const id = createUniqueId();
  const fixed = () => {
    const buffer = settings().buffer;
    return typeof buffer === "string" ? null : buffer;
  };
  const lastFixed = createMemo<number>((before) => fixed() ?? before, DEFAULT_BUFFER_FRAMES);
  return (
    <div class="field">
      <label for={id}>Buffer</label>
      <select
        id={id}
        aria-describedby={`${id}-hint`}
        onChange={(event) => {
          const { value } = event.currentTarget;
          change({ buffer: value === "tight" || value === "auto" || value === "safe" ? value : lastFixed() });
        }}
      >
        <option value="tight" selected={settings().buffer === "tight"}>
          Tight: least delay, 1 % may be late
        </option>
        <option value="auto" selected={settings().buffer === "auto"}>
          Balanced: 0.1 % may be late
        </option>
        <option value="safe" selected={settings().buffer === "safe"}>
          Safe: fewest gaps, 0.01 % may be late
        </option>
        <option value="fixed" selected={fixed() !== null}>
          Fixed
        </option>
      </select>
      <Show when={fixed() !== null}>
        <div class="with-unit">
          <input
            type="number"
            aria-label="Buffer in frames"
            min="0"
            max={MAX_TARGET_FRAMES}
            step="1" // in the lobby's form, what does not fit the step would keep one from joining
            value={lastFixed()}
            onKeyDown={enterGoesOn}
            onChange={(event) => {
              const frames = Math.round(event.currentTarget.valueAsNumber);
              const buffer = Number.isFinite(frames)
                ? Math.min(MAX_TARGET_FRAMES, Math.max(0, frames))
                : lastFixed();
              event.currentTarget.valueAsNumber = buffer;
              change({ buffer });
            }}
          />
          <span>frames = {ms(lastFixed())}</span>
        </div>
      </Show>
      <p class="hint" id={`${id}-hint`}>
        Sound kept waiting here so that late packets are still in time. All but the fixed one follow the
        network. Each player in the room can be given another.
      </p>
    </div>
  );
}

interface ChoiceProps {
  label: string;
  hint: string;
  value: string;
  options: readonly (readonly [value: string, label: string])[];
  disabled?: boolean;
  onChoice: (value: string) => void;
}

function Choice(props: ChoiceProps): JSX.Element {
  const id = createUniqueId();
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      <select
        id={id}
        aria-describedby={`${id}-hint`}
        disabled={props.disabled ?? false}
        onChange={(event) => props.onChoice(event.currentTarget.value)}
      >
        {/* Not `For`: of a list that is made anew it would replace each option, while one chooses. */}
        <Index each={props.options}>
          {(option) => (
            <option value={option()[0]} selected={option()[0] === props.value}>
              {option()[1]}
            </option>
          )}
        </Index>
      </select>
      <p class="hint" id={`${id}-hint`}>
        {props.hint}
      </p>
    </div>
  );
}

function withCurrent(values: readonly number[], current: number): number[] {
  return values.includes(current) ? [...values] : [...values, current].sort((a, b) => a - b);
}

/** At Enter, where the lobby's form would join, goes on to what comes next in it. */
function enterGoesOn(event: KeyboardEvent & { currentTarget: HTMLInputElement }): void {
  const { form } = event.currentTarget;
  if (event.key !== "Enter" || form === null) return;
  event.preventDefault();
  const controls = Array.from(form.elements);
  const next = controls.slice(controls.indexOf(event.currentTarget) + 1).find(isControl);
  next?.focus();
}

/** A form counts its field sets, too. */
function isControl(element: Element): element is HTMLElement {
  return element.matches("input, select, button");
}
