/** So long after nothing more was sent on a lane it is closed: what the other end had sent before it heard of that has come, as far as it would be played. */
export const RETIRED_MS = 1_000;

/**
 * Of lanes or sessions, where there shall be `count` of them: those that are too many, in order of their numbers. One that is open stays in place of one with a lower
 * number that is not: it may be all that carries the sound.
 */
export function spareOf<T>(
  all: Iterable<T>,
  count: number,
  look: (one: T) => { number: number; isOpen: boolean },
): T[] {
  let open = 0;
  return Array.from(all, (one) => ({ one, ...look(one) }))
    .sort((a, b) => a.number - b.number)
    .filter(({ number, isOpen }) => {
      const isSpare = number >= count && (!isOpen || open >= count);
      if (isOpen && !isSpare) open++;
      return isSpare;
    })
    .map(({ one }) => one);
}
