/** What the audio thread publishes of one stream, by name. */

import { STREAM_STATS } from "../shared/engine";

/** NaN: unknown. */
export type StreamNumber = (field: keyof typeof STREAM_STATS) => number;

/** The numbers of the stream whose own start at `at`, -1 if it has none; undefined before there are any. */
export function streamNumber(numbers: Float64Array | undefined, at: number): StreamNumber {
  return (field) => (numbers === undefined || at < 0 ? Number.NaN : numbers[at + STREAM_STATS[field]]);
}

export function orNull(number: number): number | null {
  return Number.isNaN(number) ? null : number;
}
