/** A browser's storage that holds one text, whatever the key. */
export function storage(text: string | null = null) {
  let kept = text;
  const stored = {
    getItem: () => kept,
    setItem: (_: string, value: string) => {
      kept = value;
    },
  };
  return () => stored;
}
