/** What a musician has chosen: remembered by the browser, overridden by the address (docs/automation.md). */

import { PINS, type Pin } from "../shared/engine";
import { MAX_TARGET_FRAMES } from "../shared/messages";
import { OPUS_KBPS, type OpusKbps } from "../shared/rungs";
import { type Buffer, QUANTA, type Settings } from "./model";
import { DEFAULT_NAME } from "./remembered";
import { keep, readKept } from "./storage";

const BUFFERS = ["tight", "auto", "safe"] as const;
const KEY = "antiphon.settings";
/** The server's limit (docs/protocol.md). */
export const MAX_NAME_CHARACTERS = 64;
/** What is not seen, or turns what follows round; but within an emoji it is part of that. */
const UNSEEN =
  /(\p{ExtPict}(?:\p{EMod}|\ufe0f)?(?:\u200d\p{ExtPict}(?:\p{EMod}|\ufe0f)?)*)|[\p{Cf}\p{DI}\u2800]/gu;

const DEFAULTS: Settings = {
  name: "",
  inputDeviceId: "",
  outputDeviceId: "",
  channels: 2,
  bits: 16,
  opusKbps: 128,
  copies: "auto",
  adapt: "auto",
  quantum: 64,
  packet: 128,
  buffer: "auto",
  lanes: "auto",
};

export interface Automation {
  autojoin: boolean;
  loop: boolean;
  /** Messages between threads even where shared memory is to be had: for comparison. */
  port: boolean;
  /** The way that the others' sound shall take, until it is chosen otherwise in the room. */
  pin: Pin;
  /** Null if the address says nothing of it. */
  buffer: Buffer | null;
  /** Wanted if the room is new. */
  rateHz: number;
}

/** The settings to start with, and what the address asks for beyond them. */
export function loadSettings(search: string): { settings: Settings; automation: Automation } {
  const asked = new URLSearchParams(search);
  const stored = readStored();
  const settings = { ...DEFAULTS, ...pick(stored), ...pick(Object.fromEntries(asked)) };
  if (settings.name === "") {
    settings.name = givenName();
    if (!asked.has("name")) storeSettings({ name: settings.name });
  }
  const rateHz = Number(asked.get("rate"));
  return {
    settings,
    automation: {
      autojoin: asked.get("autojoin") === "1",
      loop: asked.get("loop") === "1",
      port: asked.get("transport") === "port",
      pin: PINS.find((pin) => pin === asked.get("path")) ?? "auto",
      buffer: readBuffer(asked.get("buffer")),
      rateHz: [44_100, 48_000, 88_200, 96_000].includes(rateHz) ? rateHz : 48_000,
    },
  };
}

/** For who says none, so that all call them the same. */
export function givenName(): string {
  return `${DEFAULT_NAME} ${10 + Math.floor(90 * Math.random())}`;
}

/** As it is seen, without control characters and halves of others, and at most 64 of what the server counts, code points. */
export function nameOf(text: string): string {
  const seen = text.normalize("NFC").replace(UNSEEN, "$1");
  const plain = seen.replace(/[\p{Cc}\p{Cs}\s]+/gu, " ").trim();
  return Array.from(plain).slice(0, MAX_NAME_CHARACTERS).join("").trim();
}

/** Remembers what was changed by hand, and so nothing that only the address asked for. */
export function storeSettings(changed: Partial<Settings>): void {
  keep(KEY, { ...readStored(), ...changed });
}

function readStored(): Record<string, unknown> {
  return Object(readKept(KEY));
}

/** The valid ones among loosely typed settings; the rest is ignored. */
function pick(raw: Record<string, unknown>): Partial<Settings> {
  const settings: Partial<Settings> = {};
  if (typeof raw.name === "string") settings.name = nameOf(raw.name);
  for (const key of ["inputDeviceId", "outputDeviceId"] as const) {
    const value = raw[key];
    if (typeof value === "string" && value.length <= 256) settings[key] = value;
  }
  const channels = whole(raw.channels, 1, 8);
  if (channels !== null) settings.channels = channels;
  const bits = Number(raw.bits);
  if (bits === 16 || bits === 24 || bits === 32) settings.bits = bits;
  else if (raw.bits === "opus") settings.bits = "opus";
  const opusKbps = Number(raw.opusKbps);
  if ((OPUS_KBPS as readonly number[]).includes(opusKbps)) settings.opusKbps = opusKbps as OpusKbps;
  const { copies, adapt } = raw;
  if (copies === "auto" || copies === "on" || copies === "off") settings.copies = copies;
  if (adapt === "auto" || adapt === "off") settings.adapt = adapt;
  const quantum = QUANTA.find((frames) => frames === Number(raw.quantum));
  if (quantum !== undefined) settings.quantum = quantum;
  const packet = whole(raw.packet, 16, 512);
  if (packet !== null) settings.packet = packet;
  const buffer = readBuffer(raw.buffer);
  if (buffer !== null) settings.buffer = buffer;
  const lanes = raw.lanes === "auto" ? "auto" : whole(raw.lanes, 1, 16);
  if (lanes !== null) settings.lanes = lanes;
  return settings;
}

/** Null if it is none. */
export function readBuffer(raw: unknown): Buffer | null {
  return BUFFERS.find((name) => name === raw) ?? whole(raw, 0, MAX_TARGET_FRAMES);
}

function whole(raw: unknown, least: number, most: number): number | null {
  const isWritten = typeof raw === "number" || (typeof raw === "string" && raw.trim() !== "");
  const number = isWritten ? Number(raw) : Number.NaN;
  return Number.isInteger(number) && number >= least && number <= most ? number : null;
}
