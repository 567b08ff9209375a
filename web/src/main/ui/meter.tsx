/** A level meter on a canvas, drawn outside of Solid's updates. */

import { createSignal, onCleanup, onMount } from "solid-js";
import type { Levels } from "../model";
import { Ballistics, METER_FLOOR_DB, meterPosition } from "./ballistics";
import { peakWords } from "./level-words";
import { useView } from "./view";

const BAR_PX = 10;
const GAP_PX = 3;
const CLIP_PX = 12;
const TICKS_DB = [-48, -36, -24, -12];
/** From here up there is little room left. */
const HOT_DB = -6;
/** Slow enough to be read. */
const PEAK_INTERVAL_MS = 500;
/** `--meter-…` in style.css. */
const COLOURS = ["track", "tick", "level", "hot", "clip", "hold"] as const;

interface Props {
  read: (levels: Levels) => readonly number[];
  /** Bars drawn while the number of channels is unknown. */
  channels: number;
  dimmed?: boolean;
}

/** Hidden from screen readers: the words and figures beside it say the same. */
export function Meter(props: Props) {
  const view = useView();
  let canvas!: HTMLCanvasElement;

  onMount(() => {
    const painter = new Painter(canvas);
    onCleanup(() => painter.close());
    view.onFrame((levels, timeMs) =>
      painter.draw(props.read(levels), props.channels, props.dimmed ?? false, timeMs),
    );
  });

  return (
    <div aria-hidden="true">
      <canvas class="meter" ref={canvas} />
    </div>
  );
}

/** The loudest of the last half second, in words. */
export function PeakWords(props: { read: Props["read"]; class: string }) {
  const view = useView();
  const [words, setWords] = createSignal(peakWords(null));
  let loudest = 0;
  let wroteAtMs = 0;
  view.onFrame((levels, timeMs) => {
    const peaks = props.read(levels);
    loudest = Math.max(loudest, ...peaks);
    if (timeMs - wroteAtMs < PEAK_INTERVAL_MS) return;
    setWords(peakWords(peaks.length > 0 ? loudest : null));
    loudest = 0;
    wroteAtMs = timeMs;
  });
  return <p class={props.class}>{words()}</p>;
}

/** The scale under a meter: each number at its tick. */
export function MeterScale() {
  return (
    <div class="meter-scale" aria-hidden="true">
      {[METER_FLOOR_DB, ...TICKS_DB, 0].map((db) => (
        <span class="meter-number" style={{ "--at": String(meterPosition(db)) }}>
          {db === 0 ? "0" : `−${-db}`}
        </span>
      ))}
    </div>
  );
}

class Painter {
  readonly #canvas: HTMLCanvasElement;
  readonly #context: CanvasRenderingContext2D;
  readonly #abort = new AbortController();
  readonly #observer: ResizeObserver;
  #bars: Ballistics[] = [];
  #widthPx = 0;
  #dimmed = false;
  #stale = true;
  #colours: Record<(typeof COLOURS)[number], string> = {
    track: "",
    tick: "",
    level: "",
    hot: "",
    clip: "",
    hold: "",
  };

  constructor(canvas: HTMLCanvasElement) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d")!;
    this.#readColours();
    for (const query of [
      "(prefers-color-scheme: dark)",
      "(prefers-contrast: more)",
      "(forced-colors: active)",
    ]) {
      matchMedia(query).addEventListener("change", () => this.#readColours(), { signal: this.#abort.signal });
    }
    this.#observer = new ResizeObserver(([entry]) => {
      this.#widthPx = entry!.contentRect.width;
      this.#resize();
    });
    this.#observer.observe(canvas);
  }

  close(): void {
    this.#observer.disconnect();
    this.#abort.abort();
  }

  draw(peaks: readonly number[], channels: number, dimmed: boolean, timeMs: number): void {
    const count = peaks.length || channels;
    if (this.#bars.length !== count) {
      this.#bars = Array.from({ length: count }, (_, i) => this.#bars[i] ?? new Ballistics());
      this.#resize();
    }
    if (this.#dimmed !== dimmed) {
      this.#dimmed = dimmed;
      this.#stale = true;
    }
    for (let i = 0; i < count; i++) {
      if (this.#bars[i]!.update(peaks[i] ?? 0, timeMs)) this.#stale = true;
    }
    if (this.#stale && this.#widthPx > 0) this.#paint();
  }

  #readColours(): void {
    const style = getComputedStyle(this.#canvas);
    for (const key of COLOURS) this.#colours[key] = style.getPropertyValue(`--meter-${key}`).trim();
    this.#stale = true;
  }

  #resize(): void {
    const heightPx = this.#bars.length * (BAR_PX + GAP_PX) - GAP_PX;
    if (heightPx <= 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.#canvas.style.setProperty("height", `${heightPx}px`);
    this.#canvas.width = Math.max(1, Math.round(this.#widthPx * ratio));
    this.#canvas.height = Math.round(heightPx * ratio);
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#stale = true;
  }

  #paint(): void {
    this.#stale = false;
    const c = this.#context;
    const colours = this.#colours;
    const lengthPx = this.#widthPx - CLIP_PX - GAP_PX;
    const hotPx = Math.round(meterPosition(HOT_DB) * lengthPx);
    c.globalAlpha = 1;
    c.clearRect(0, 0, this.#widthPx, this.#bars.length * (BAR_PX + GAP_PX));
    this.#bars.forEach((bar, i) => {
      const y = i * (BAR_PX + GAP_PX);
      c.globalAlpha = 1;
      c.fillStyle = colours.track;
      c.fillRect(0, y, lengthPx, BAR_PX);
      c.fillStyle = bar.clipping ? colours.clip : colours.track;
      c.fillRect(lengthPx + GAP_PX, y, CLIP_PX, BAR_PX);
      c.globalAlpha = this.#dimmed ? 0.35 : 1;
      const levelPx = meterPosition(bar.levelDb) * lengthPx;
      c.fillStyle = colours.level;
      c.fillRect(0, y, Math.min(levelPx, hotPx), BAR_PX);
      if (levelPx > hotPx) {
        c.fillStyle = colours.hot;
        c.fillRect(hotPx, y, levelPx - hotPx, BAR_PX);
      }
      c.fillStyle = colours.tick;
      for (const db of TICKS_DB) c.fillRect(Math.round(meterPosition(db) * lengthPx), y, 1, BAR_PX);
      if (bar.holdDb > METER_FLOOR_DB) {
        c.fillStyle = bar.holdDb >= HOT_DB ? colours.hot : colours.hold;
        c.fillRect(Math.min(lengthPx - 2, meterPosition(bar.holdDb) * lengthPx), y, 2, BAR_PX);
      }
    });
  }
}
