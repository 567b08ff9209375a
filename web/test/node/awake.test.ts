import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Awake } from "../../src/main/awake";

const page = { visibilityState: "visible" };
let turned: () => void;
let locks: { released: boolean; release: () => Promise<void> }[];
const request = vi.fn(async () => {
  const lock = {
    released: false,
    release: async () => {
      lock.released = true;
    },
  };
  locks.push(lock);
  return lock;
});

beforeEach(() => {
  locks = [];
  request.mockClear();
  page.visibilityState = "visible";
  vi.stubGlobal("document", page);
  vi.stubGlobal("navigator", { wakeLock: { request } });
  vi.stubGlobal("addEventListener", (_: string, listener: () => void) => {
    turned = listener;
  });
});
afterEach(() => vi.unstubAllGlobals());

const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const held = () => locks.filter(({ released }) => !released).length;

it("keeps the screen on while it is wanted, and asks again when the page is shown again", async () => {
  const awake = new Awake();
  awake.follow(true);
  await settled();
  expect(held()).toBe(1);
  page.visibilityState = "hidden";
  for (const lock of locks) lock.released = true;
  turned();
  await settled();
  expect(held()).toBe(0);
  page.visibilityState = "visible";
  turned();
  turned();
  await settled();
  expect(held()).toBe(1);
  awake.follow(false);
  await settled();
  expect(held()).toBe(0);
});

it("lets go of what was given after it was no more wanted", async () => {
  const awake = new Awake();
  awake.follow(true);
  awake.follow(false);
  await settled();
  expect(request).toHaveBeenCalledTimes(1);
  expect(held()).toBe(0);
});

it("leaves it to the system where the browser refuses, or knows no such thing", async () => {
  request.mockRejectedValueOnce(new DOMException("low battery", "NotAllowedError"));
  new Awake().follow(true);
  await settled();
  vi.stubGlobal("navigator", {});
  new Awake().follow(true);
  await settled();
  expect(held()).toBe(0);
});
