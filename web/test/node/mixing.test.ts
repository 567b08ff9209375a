import { expect, it } from "vitest";
import { Mixing, type MixLook } from "../../src/main/mixing";

/** A page that looks every 100 ms, and what it hears: "a" by its own stream, "mix a" in the mix. */
class Page {
  readonly mixing = new Mixing();
  nowMs = 0;
  mixPlays = false;
  forwarded = new Set(["a", "b"]);
  played = new Map<string, number>();

  look(wanted: string[], change: Partial<MixLook> = {}): string[] {
    this.nowMs += 100;
    this.mixing.look(new Set(wanted), {
      nowMs: this.nowMs,
      mixPlays: this.mixPlays,
      settleMs: 250,
      isForwarded: (id) => this.forwarded.has(id),
      playedFrames: (id) => this.played.get(id) ?? 0,
      ...change,
    });
    const { mixing } = this;
    const own = ["a", "b"].filter((id) => !mixing.isMixed(id));
    return mixing.isHeard
      ? [...own, ...["a", "b"].filter((id) => mixing.isMixed(id)).map((id) => `mix ${id}`)]
      : own;
  }
}

it("hears the streams until the mix plays, then the mix alone, in one step", () => {
  const page = new Page();
  for (let n = 0; n < 20; n++) expect(page.look(["a", "b"])).toEqual(["a", "b"]);
  expect(page.mixing.sources).toEqual(["a", "b"]);
  expect(page.mixing.needsOwn("a")).toBe(true);
  page.mixPlays = true;
  expect(page.look(["a", "b"])).toEqual(["mix a", "mix b"]);
  expect(page.mixing.needsOwn("a")).toBe(false);
});

it("goes back once the streams play, and then ends the mix", () => {
  const page = new Page();
  page.mixPlays = true;
  for (let n = 0; n < 10; n++) page.look(["a", "b"]);
  for (let n = 0; n < 20; n++) expect(page.look([])).toEqual(["mix a", "mix b"]);
  expect(page.mixing.sources).toEqual(["a", "b"]);
  expect(page.mixing.needsOwn("a")).toBe(true);
  page.played.set("a", 128).set("b", 128);
  expect(page.look([])).toEqual(["a", "b"]);
  expect(page.mixing.sources).toEqual([]);
});

it("adds one to a mix that plays only when the mix holds it", () => {
  const page = new Page();
  page.mixPlays = true;
  for (let n = 0; n < 10; n++) page.look(["a"]);
  expect(page.look(["a", "b"])).toEqual(["b", "mix a"]);
  expect(page.mixing.sources).toEqual(["a", "b"]);
  expect(page.look(["a", "b"])).toEqual(["b", "mix a"]);
  expect(page.look(["a", "b"])).toEqual(["b", "mix a"]);
  expect(page.look(["a", "b"])).toEqual(["mix a", "mix b"]);
});

it("says who does not come into the mix, until it has", () => {
  const page = new Page();
  page.mixPlays = true;
  page.forwarded.delete("a");
  const isHeldUp = () => {
    page.look(["a"]);
    return page.mixing.isHeldUp("a");
  };
  const looks = Array.from({ length: 30 }, isHeldUp);
  expect(looks).toEqual(Array.from(looks, (_, n) => n >= 20));
  page.forwarded.add("a");
  // So it stays while its stream comes, or it would be asked for directly again too early.
  expect([isHeldUp(), isHeldUp(), page.mixing.isMixed("a")]).toEqual([true, true, false]);
  expect([isHeldUp(), page.mixing.isMixed("a")]).toEqual([false, true]);
  page.mixPlays = false;
  expect(isHeldUp()).toBe(false);
});

it("takes one out of a mix that goes on before its own stream is heard", () => {
  const page = new Page();
  page.mixPlays = true;
  for (let n = 0; n < 10; n++) page.look(["a", "b"]);
  page.look(["a"]);
  page.played.set("b", 128);
  expect(page.look(["a"])).toEqual(["mix a", "mix b"]);
  expect(page.mixing.sources).toEqual(["a"]);
  expect(page.look(["a"])).toEqual(["mix a", "mix b"]);
  expect(page.look(["a"])).toEqual(["mix a", "mix b"]);
  expect(page.look(["a"])).toEqual(["b", "mix a"]);
});

it("does not wait for a mix that has died, nor for one who has gone", () => {
  const page = new Page();
  page.mixPlays = true;
  for (let n = 0; n < 10; n++) page.look(["a", "b"]);
  page.mixing.remove("b");
  page.mixPlays = false;
  page.look([]);
  expect(page.look([])).toEqual(["a", "b"]);
});

it("lets nobody in who does not come by the server, though the mix of the others plays", () => {
  const page = new Page();
  page.mixPlays = true;
  page.forwarded.delete("b");
  for (let n = 0; n < 20; n++) page.look(["a", "b"]);
  expect(page.look(["a", "b"])).toEqual(["b", "mix a"]);
  expect([page.mixing.needsOwn("a"), page.mixing.needsOwn("b")]).toEqual([false, true]);
  // From then on it takes as long as ever until the mix holds it.
  page.forwarded.add("b");
  for (let n = 0; n < 2; n++) expect(page.look(["a", "b"])).toEqual(["b", "mix a"]);
  expect(page.look(["a", "b"])).toEqual(["mix a", "mix b"]);
});

it("goes back where the mix has ended though it is wanted, and into it again once it plays", () => {
  const page = new Page();
  page.mixPlays = true;
  for (let n = 0; n < 10; n++) page.look(["a", "b"]);
  page.mixPlays = false;
  for (let n = 0; n < 20; n++) expect(page.look(["a", "b"])).toEqual(["a", "b"]);
  expect([page.mixing.needsOwn("a"), page.mixing.needsOwn("b")]).toEqual([true, true]);
  expect(page.mixing.sources).toEqual(["a", "b"]);
  page.mixPlays = true;
  expect(page.look(["a", "b"])).toEqual(["mix a", "mix b"]);
});

it("changes its mind without a gap", () => {
  const page = new Page();
  page.look(["a", "b"]);
  expect(page.look([])).toEqual(["a", "b"]);
  expect(page.mixing.sources).toEqual([]);
  page.mixPlays = true;
  for (let n = 0; n < 10; n++) page.look(["a", "b"]);
  page.look([]);
  expect(page.look(["a", "b"])).toEqual(["mix a", "mix b"]);
  expect(page.mixing.needsOwn("a")).toBe(false);
});
