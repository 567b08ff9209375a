/** How components see the session: its state and figures as signals, its levels 15 times a second. */

import {
  type Accessor,
  createContext,
  createMemo,
  createSignal,
  type JSX,
  onCleanup,
  untrack,
  useContext,
} from "solid-js";
import type { PeerStats, Stats } from "../../shared/stats";
import type { Levels, Problem, StudioApi, StudioState } from "../model";
import { Acts } from "./acts";

const STATS_INTERVAL_MS = 500;

export type Draw = (levels: Levels, timeMs: number) => void;

export interface View {
  studio: StudioApi;
  state: Accessor<StudioState>;
  /** Null until first read. Stands still while the tab is hidden. */
  stats: Accessor<Stats | null>;
  /** Calls back 15 times a second in a visible tab, until the calling component goes. */
  onFrame(draw: Draw): void;
  /** Runs a request to the session; should it fail unexpectedly, says so instead of doing nothing. */
  attempt(request: () => Promise<void>): Promise<void>;
  /** The session's problems and the interface's own. */
  problems: Accessor<Problem[]>;
  dismiss(problemId: string): void;
}

const ViewContext = createContext<View>();

export function useView(): View {
  const view = useContext(ViewContext);
  if (!view) throw new Error("useView outside of ViewProvider");
  return view;
}

export function ViewProvider(props: { studio: StudioApi; children: JSX.Element }) {
  const view = createView(untrack(() => props.studio));
  return <ViewContext.Provider value={view}>{props.children}</ViewContext.Provider>;
}

/** The ids of a list, so that `<For>` keeps a row, and the focus in it, through every change of the row's contents. */
export function createIds<T extends { id: string }>(list: Accessor<readonly T[]>): Accessor<string[]> {
  return createMemo<string[]>((before) => {
    const ids = list().map((item) => item.id);
    return before.length === ids.length && before.every((id, i) => id === ids[i]) ? before : ids;
  }, []);
}

/** The row of that id; its last contents while it is being removed. */
export function createRow<T extends { id: string }>(list: Accessor<readonly T[]>, id: string): Accessor<T> {
  return createMemo<T>(
    (before) => list().find((item) => item.id === id) ?? before,
    untrack(() => list().find((item) => item.id === id)!),
  );
}

/** The figures of the participant of that id; null before there are any. */
export function peerOf(stats: Stats | null, id: string): PeerStats | null {
  return stats?.peers.find((peer) => peer.id === id) ?? null;
}

function createView(studio: StudioApi): View {
  const [faults, setFaults] = createSignal<Problem[]>([]);
  const acts = new Acts((fault) => setFaults(fault === null ? [] : [fault]), studio.state.problems);
  const [state, setState] = createSignal(studio.state);
  onCleanup(
    studio.subscribe(() => {
      setState(() => studio.state);
      acts.follow(studio.state.problems);
    }),
  );
  const dismiss = (problemId: string) => {
    if (faults().some((fault) => fault.id === problemId)) setFaults([]);
    else studio.dismiss(problemId);
  };

  return {
    studio,
    state,
    stats: createStats(studio),
    onFrame: createFrameLoop(studio),
    attempt: (request) => acts.attempt(request),
    problems: createMemo(() => [...faults(), ...state().problems]),
    dismiss,
  };
}

function createStats(studio: StudioApi): Accessor<Stats | null> {
  const [stats, setStats] = createSignal<Stats | null>(null);
  let timer: number | undefined;
  const read = () => setStats(studio.stats());
  onVisibility((visible) => {
    clearInterval(timer);
    if (!visible) return;
    read();
    timer = window.setInterval(read, STATS_INTERVAL_MS);
  });
  onCleanup(() => clearInterval(timer));
  return stats;
}

/**
 * Meters are drawn 15 times a second. Drawn with every frame of the screen, on a machine without graphics hardware, they take
 * the processor from the audio threads, and the sound breaks.
 */
const METER_INTERVAL_MS = 65;

function createFrameLoop(studio: StudioApi): View["onFrame"] {
  const draws = new Set<Draw>();
  let timer: ReturnType<typeof setInterval> | undefined;
  let visible = true;
  const frame = () => {
    const levels = studio.levels();
    const timeMs = performance.now();
    for (const draw of draws) draw(levels, timeMs);
  };
  const settle = () => {
    const wanted = visible && draws.size > 0;
    if (wanted) timer ??= setInterval(frame, METER_INTERVAL_MS);
    else {
      clearInterval(timer);
      timer = undefined;
    }
  };
  onVisibility((now) => {
    visible = now;
    settle();
  });
  return (draw) => {
    draws.add(draw);
    settle();
    onCleanup(() => {
      draws.delete(draw);
      settle();
    });
  };
}

function onVisibility(listener: (visible: boolean) => void): void {
  const tell = () => listener(document.visibilityState === "visible");
  document.addEventListener("visibilitychange", tell);
  onCleanup(() => document.removeEventListener("visibilitychange", tell));
  tell();
}
