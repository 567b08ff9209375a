/** Traces of when blocks are captured and datagrams sent and received, one at a time. */

import type { TraceRows } from "../shared/messages";
import type { Trace } from "../shared/stats";
import type { Sound } from "./sound";

const MAX_SECONDS = 60;
/** How long the worker may take to hand a trace over. */
const PATIENCE_SECONDS = 10;

export class Tracing {
  /** Where the rows of the trace under way go. */
  #end: ((rows: TraceRows) => void) | null = null;

  /**
   * Records for `seconds` (more than 0, at most 60). `participants`: of each stream, when the trace has ended.
   *
   * *Errors* while another trace is under way, and if the sound stops meanwhile.
   */
  async run(sound: Sound, seconds: number, participants: () => ReadonlyMap<number, string>): Promise<Trace> {
    if (this.#end !== null) throw new Error("a trace is under way");
    if (!(seconds > 0 && seconds <= MAX_SECONDS))
      throw new RangeError(`a trace takes more than 0 and at most ${MAX_SECONDS} s`);
    const rows = await new Promise<TraceRows | null>((resolve) => {
      this.#end = resolve;
      sound.trace(seconds);
      setTimeout(resolve, (seconds + PATIENCE_SECONDS) * 1000, null);
    });
    this.#end = null;
    if (rows === null) throw new Error("the sound stopped during the trace");
    const names = participants();
    const { captured, sent, received, dropped } = rows;
    return {
      version: 1,
      captured: { timeMs: column(captured, 2, 0), frames: column(captured, 2, 1) },
      sent: { timeMs: column(sent, 3, 0), sequence: column(sent, 3, 1), firstFrame: column(sent, 3, 2) },
      received: {
        timeMs: column(received, 5, 0),
        sequence: column(received, 5, 1),
        firstFrame: column(received, 5, 2),
        peer: column(received, 5, 3).map((stream) => names.get(stream) ?? ""),
        isCopy: column(received, 5, 4).map((copy) => copy === 1),
      },
      dropped,
    };
  }

  handleRows(rows: TraceRows): void {
    this.#end?.(rows);
    this.#end = null;
  }
}

function column(of: Float64Array, width: number, at: number): number[] {
  return Array.from({ length: of.length / width }, (_, row) => of[row * width + at]);
}
