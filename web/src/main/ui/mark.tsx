/** The sign of Antiphon: one phrase of square notes on four lines, and its answer. */

import { Dynamic } from "solid-js/web";

/** A phrase as steps above the lowest line, mirrored by the other choir. */
const PHRASE = [1, 2, 4, 3, 5] as const;
const NOTE = 9;
const STEP = 7;
const LINES = [0, 2, 4, 6];

const noteY = (step: number) => 52 - step * STEP - NOTE / 2;

/** Large, across the page. Decoration only. */
export function Stave() {
  return (
    <svg class="stave" viewBox="0 0 400 64" aria-hidden="true">
      <title>Antiphon</title>
      <g class="stave-lines">
        {LINES.map((line) => (
          <path d={`M0 ${52 - line * STEP}H400`} />
        ))}
      </g>
      <g class="choir-a">
        {PHRASE.map((step, i) => (
          <rect x={24 + i * 30} y={noteY(step)} width={NOTE} height={NOTE} rx="1" />
        ))}
      </g>
      <g class="choir-b">
        {PHRASE.map((step, i) => (
          <rect x={400 - 24 - NOTE - i * 30} y={noteY(step)} width={NOTE} height={NOTE} rx="1" />
        ))}
      </g>
      <path class="stave-bar" d="M200 10V52" />
    </svg>
  );
}

/** The name with its small sign: the link to the start page, except where that would be to leave the others by a slip. */
export function Wordmark(props: { playing?: boolean }) {
  return (
    <Dynamic component={props.playing ? "span" : "a"} class="wordmark" {...(!props.playing && { href: "/" })}>
      <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
        <title>Antiphon</title>
        <path class="stave-lines" d="M1 7H31M1 13H31M1 19H31M1 25H31" />
        <g class="choir-a">
          <rect x="2" y="16.5" width="5" height="5" rx=".7" />
          <rect x="9" y="10.5" width="5" height="5" rx=".7" />
        </g>
        <g class="choir-b">
          <rect x="18" y="10.5" width="5" height="5" rx=".7" />
          <rect x="25" y="16.5" width="5" height="5" rx=".7" />
        </g>
      </svg>
      <span>Antiphon</span>
    </Dynamic>
  );
}
