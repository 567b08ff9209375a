import { expect, it } from "vitest";
import { doorWords, stoppedBy } from "../../src/main/door";

it.each<[code: string, hasSaid: boolean, wasIn: boolean, words: RegExp | null]>([
  ["passphrase", false, false, /room is locked/],
  ["passphrase", true, false, /not the passphrase/],
  ["passphrase", true, true, /not the passphrase/],
  ["too_fast", true, false, /too many wrong passphrases.* Wait a minute, then try again/],
  ["too_fast", true, true, null],
  ["room_full", true, false, null],
])("%s, said %s, in before %s", (code, hasSaid, wasIn, words) => {
  const stopped = stoppedBy(code, hasSaid, wasIn);
  if (words === null) expect(stopped).toBeNull();
  else expect(stopped && doorWords[stopped]).toMatch(words);
});
