/** Milliseconds since the epoch, monotonic within the page and the same in its threads: the worker has its own of that name. */
export const epochMs = () => performance.timeOrigin + performance.now();
