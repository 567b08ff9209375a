/** Milliseconds since the epoch, monotonic within the page and the same in its threads; comparable between processes of one machine. */
export const epochMs = () => performance.timeOrigin + performance.now();
