/** Milliseconds since the epoch, monotonic within the page and the same in its threads: the worker has its own of that name. */
export const epochMs = () => performance.timeOrigin + performance.now();

/** Null where the browser does not say. */
export function milliseconds(seconds: number | undefined): number | null {
  return seconds === undefined || Number.isNaN(seconds) ? null : seconds * 1000;
}
