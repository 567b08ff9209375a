/** Names of rooms, and the links to them. */

/** `ROOM` in docs/protocol.md. */
const ROOM = /^[A-Za-z0-9_-]{16,64}$/;
const ROOM_BYTES = 16;

/** 128 random bits, base64url: 22 characters. Whoever knows the name may enter, so it must not be guessable. */
export function newRoom(
  random: (bytes: Uint8Array<ArrayBuffer>) => void = (b) => crypto.getRandomValues(b),
): string {
  const bytes = new Uint8Array(ROOM_BYTES);
  random(bytes);
  return btoa(String.fromCharCode(...bytes))
    .replace(/\+/g, "-")
    .replace(/\//g, "_")
    .replace(/=+$/, "");
}

export type RoomReference =
  | { kind: "room"; room: string }
  /** A room of another Antiphon server. */
  | { kind: "elsewhere"; host: string; link: string }
  | { kind: "empty" }
  | { kind: "unreadable" };

/** What a person pasted: a whole link, one without its scheme, a path, or the bare name. */
export function readRoom(pasted: string, origin: string): RoomReference {
  const text = pasted.trim().replace(/^<|>$/g, "");
  if (text === "") return { kind: "empty" };
  if (ROOM.test(text)) return { kind: "room", room: text };
  const here = new URL(origin);
  for (const candidate of [text, `${here.protocol}//${text}`]) {
    const url = URL.canParse(candidate, origin) ? new URL(candidate, origin) : null;
    if (!url || !/^https?:$/.test(url.protocol)) continue;
    const room = /^\/r\/([^/]+)\/?$/.exec(url.pathname)?.[1];
    if (!room || !ROOM.test(room)) continue;
    if (url.host === here.host) return { kind: "room", room };
    return { kind: "elsewhere", host: url.host, link: `${url.origin}/r/${room}` };
  }
  return { kind: "unreadable" };
}
