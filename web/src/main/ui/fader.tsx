/** Gain and pan: native range inputs with a way back to neutral. */

import { createUniqueId, type JSX } from "solid-js";
import { FADER_MAX_DB, FADER_MIN_DB, FADER_STEP_DB, faderToGain, gainToDb, gainToFader } from "./decibel";
import { formatDb, formatPan, spokenDb } from "./format";

const PAN_STEP = 5; // percent

export function GainFader(props: { name: string; gain: number; onGain: (gain: number) => void }) {
  const db = () => gainToDb(faderToGain(gainToFader(props.gain)));
  return (
    <Slider
      label="Gain"
      of={props.name}
      class="gain"
      min={FADER_MIN_DB}
      max={FADER_MAX_DB}
      step={FADER_STEP_DB}
      position={gainToFader(props.gain)}
      shown={formatDb(db())}
      spoken={spokenDb(db())}
      neutral="0 dB"
      onPosition={(position) => props.onGain(faderToGain(position))}
      onNeutral={() => props.onGain(1)}
    />
  );
}

export function PanFader(props: { name: string; pan: number; onPan: (pan: number) => void }) {
  return (
    <Slider
      label="Pan"
      of={props.name}
      class="pan"
      min={-100}
      max={100}
      step={PAN_STEP}
      position={Math.round((props.pan * 100) / PAN_STEP) * PAN_STEP}
      shown={formatPan(props.pan)}
      spoken={formatPan(props.pan)}
      neutral="centre"
      onPosition={(position) => props.onPan(position / 100)}
      onNeutral={() => props.onPan(0)}
    />
  );
}

interface SliderProps {
  label: string;
  of: string;
  class: string;
  min: number;
  max: number;
  step: number;
  position: number;
  shown: string;
  spoken: string;
  /** What position 0 is called. */
  neutral: string;
  onPosition: (position: number) => void;
  onNeutral: () => void;
}

function Slider(props: SliderProps): JSX.Element {
  const id = createUniqueId();
  let input!: HTMLInputElement;
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !["0", "Delete", "Backspace"].includes(event.key))
      return;
    event.preventDefault();
    props.onNeutral();
  };
  return (
    <div class={`slider ${props.class}`}>
      <label for={id}>
        {props.label}
        <span class="visually-hidden"> of {props.of}</span>
      </label>
      {/* The slider says it itself. */}
      <output for={id} class="slider-value" aria-live="off">
        {props.shown}
      </output>
      <input
        ref={input}
        id={id}
        type="range"
        min={props.min}
        max={props.max}
        step={props.step}
        value={props.position}
        aria-valuetext={props.spoken}
        onInput={(event) => props.onPosition(event.currentTarget.valueAsNumber)}
        onDblClick={() => props.onNeutral()}
        onKeyDown={onKeyDown}
      />
      <button
        type="button"
        class="button reset"
        // In its place even while it is not needed, so that nothing moves.
        style={{ visibility: props.position === 0 ? "hidden" : "visible" }}
        aria-label={`Reset ${props.label.toLowerCase()} of ${props.of} to ${props.neutral}`}
        onClick={() => {
          props.onNeutral();
          // It goes, and would take the focus with it.
          input.focus();
        }}
      >
        Reset
      </button>
    </div>
  );
}
