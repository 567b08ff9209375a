import { describe, expect, it } from "vitest";
import { newRoom, readRoom } from "../../src/main/ui/room-link";

const ORIGIN = "https://antiphon.example";
const ROOM = "AbCdEfGhIjKlMnOpQrStUv";

describe("a new room", () => {
  it("has 22 characters of base64url from 128 random bits", () => {
    expect(newRoom((bytes) => bytes.fill(0xff))).toBe("_____________________w");
    expect(newRoom((bytes) => bytes.fill(0xfb))).toBe("-_v7-_v7-_v7-_v7-_v7-w");
    expect(newRoom()).toMatch(/^[A-Za-z0-9_-]{22}$/);
    expect(newRoom()).not.toBe(newRoom());
  });
});

describe("what was pasted", () => {
  it.each([
    ROOM,
    `  ${ROOM}\n`,
    `${ORIGIN}/r/${ROOM}`,
    `${ORIGIN}/r/${ROOM}/?from=mail#top`,
    `<${ORIGIN}/r/${ROOM}>`,
    `antiphon.example/r/${ROOM}`,
    `/r/${ROOM}`,
  ])("%j leads to the room", (pasted) =>
    expect(readRoom(pasted, ORIGIN)).toEqual({ kind: "room", room: ROOM }),
  );

  it("may be a room on another server", () => {
    expect(readRoom(`https://elsewhere.example/r/${ROOM}`, ORIGIN)).toEqual({
      kind: "elsewhere",
      host: "elsewhere.example",
      link: `https://elsewhere.example/r/${ROOM}`,
    });
  });

  it.each([
    "rehearsal",
    "https://antiphon.example/",
    `javascript:alert(1)//r/${ROOM}`,
    `https://antiphon.example/r/${"x".repeat(65)}`,
    "https://antiphon.example/r/spaces are not allowed",
  ])("%j is no room", (pasted) => expect(readRoom(pasted, ORIGIN)).toEqual({ kind: "unreadable" }));

  it("may be nothing", () => {
    expect(readRoom("  ", ORIGIN)).toEqual({ kind: "empty" });
  });
});
