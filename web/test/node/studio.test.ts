import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { storeCalibration } from "../../src/main/calibration";
import { closedDoorWords } from "../../src/main/door";
import { loadSettings } from "../../src/main/settings";
import { Studio } from "../../src/main/studio";
import { microphoneAction } from "../../src/main/ui/ask-for-microphone";
import { ownChanges, whyUnheard } from "../../src/main/ui/own-words";
import { COMMAND, STREAM_STATS } from "../../src/shared/engine";
import type { FromWorker } from "../../src/shared/messages";
import { WORKLET_STATS } from "../../src/shared/snapshot";

/** No more of the sound than coming in and leaving need. */
const sound = vi.hoisted(() => ({
  context: { state: "running", sinkId: "", resume: vi.fn(async () => {}) },
  configureSender: vi.fn(),
  setHeard: () => {},
  setListen: () => {},
  setMuted: vi.fn(),
  setOutput: vi.fn(async (sinkId: string) => void Object.assign(sound.context, { sinkId })),
  stopCapture: vi.fn(),
  setRelay: () => {},
  holdRelay: () => {},
  doubtLanes: () => {},
  capture: vi.fn(),
  close: async () => {},
  addStream: vi.fn(),
  removeStream: () => {},
  setBuffer: () => {},
  command: vi.fn(),
  setPeer: vi.fn(),
  mixing: {
    isMixed: () => false,
    isNeeded: false,
    isSource: () => false,
    needsOwn: () => true,
    review: () => {},
  },
  numbers: vi.fn((): Float64Array | undefined => undefined),
  standstill: vi.fn(() => ({ audio: false, worker: false })),
  offsetOf: (): number => -1,
  observeOutput: () => {},
  isInputLate: vi.fn(() => false),
  outputClock: () => null,
  reportedOutputLatencyMs: () => null,
  outputUnderruns: () => null,
  capturesTrack: false,
}));
const NotLoaded = vi.hoisted(() => class extends Error {});
const loops: { stream: number }[] = vi.hoisted(() => []);
const startSound = vi.hoisted(() =>
  vi.fn(async ({ quantum, outputDeviceId }: { quantum: number; outputDeviceId: string }) => {
    sound.context.sinkId = outputDeviceId;
    return Object.assign(sound, { quantum });
  }),
);
const peers = vi.hoisted(() => [] as { iceServers: unknown; connection: string }[]);
const retried = vi.hoisted(() => vi.fn());
const wantLanes = vi.hoisted(() => vi.fn());
vi.mock("../../src/main/mesh", () => ({
  Loop: class {
    connection = "failed";
    constructor(readonly stream: number) {
      loops.push(this);
    }
    close(): void {}
  },
  Peer: class {
    connection = "connecting";
    iceServers: unknown;
    constructor(_self: string, _id: string, _stream: number, _lanes: unknown, iceServers: unknown) {
      this.iceServers = iceServers;
      peers.push(this);
    }
    close(): void {}
    meetAgain(): void {}
    retry = retried;
    wantLanes = wantLanes;
  },
}));
vi.mock("../../src/main/sound", () => ({
  BUDGET_SHARES: {},
  TELLS_OUTPUT: true,
  NotLoaded,
  Sound: { start: startSound },
}));

/** Those to the server, which the test speaks for. */
class Socket {
  static readonly OPEN = 1;
  static readonly CLOSING = 2;
  static readonly CLOSED = 3;
  static last: Socket | null = null;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  readyState: number = Socket.OPEN;
  said: { type: string; to?: string; data?: unknown; secret?: string }[] = [];
  constructor() {
    Socket.last = this;
  }
  send(text: string): void {
    this.said.push(JSON.parse(text));
  }
  close(): void {}
}

const trackSettings: MediaTrackSettings & { latency?: number } = { sampleRate: 48_000, deviceId: "usb in" };
const track = { label: "Microphone", muted: false, stop: vi.fn(), getSettings: vi.fn(() => trackSettings) };
const microphone = { getTracks: () => [track], getAudioTracks: () => [track] };
const askForMicrophone = vi.fn(async () => microphone);
const plugged = vi.fn(async () => [] as { kind: string; deviceId: string; label: string }[]);
/** What the page does when something is done to it. */
const gestures = new Map<string, (event?: object) => void>();
const page = { visibilityState: "visible" };
/** What is plugged in changes to these. */
let plug: (inputs: string[], outputs: string[]) => Promise<void>;

beforeEach(() => {
  vi.useFakeTimers();
  vi.clearAllMocks();
  peers.length = 0;
  plugged.mockResolvedValue([]);
  sound.standstill.mockReturnValue({ audio: false, worker: false });
  Socket.last = null;
  vi.stubGlobal("WebSocket", Socket);
  vi.stubGlobal(
    "AudioContext",
    class {
      setSinkId(): void {}
    },
  );
  vi.stubGlobal("crossOriginIsolated", true);
  vi.stubGlobal("isSecureContext", true);
  vi.stubGlobal("document", page);
  vi.stubGlobal("location", { protocol: "https:", host: "play.example", origin: "https://play.example" });
  gestures.clear();
  vi.stubGlobal("addEventListener", (type: string, listener: () => void) => gestures.set(type, listener));
  vi.stubGlobal("removeEventListener", () => {});
  vi.stubGlobal("localStorage", { getItem: () => null, setItem: () => {} });
  vi.stubGlobal("navigator", {
    userAgent: "",
    mediaDevices: {
      addEventListener: (_: string, changed: () => void) => {
        plug = async (inputs, outputs) => {
          const named = (kind: string, ids: string[]) =>
            ids.map((deviceId) => ({ kind, deviceId, label: deviceId }));
          plugged.mockResolvedValue([...named("audioinput", inputs), ...named("audiooutput", outputs)]);
          changed();
          await vi.advanceTimersByTimeAsync(0);
        };
      },
      enumerateDevices: plugged,
      getUserMedia: askForMicrophone,
    },
  });
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** From here on the browser keeps what is stored. */
function keepStorage(): void {
  for (const name of ["localStorage", "sessionStorage"]) {
    const kept = new Map<string, string>();
    vi.stubGlobal(name, {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, value: string) => kept.set(key, value),
    });
  }
}

function newStudio(room = "room"): Studio {
  const { settings, automation } = loadSettings("");
  return new Studio(room, settings, automation);
}

async function serverSays(message: object): Promise<void> {
  Socket.last?.onmessage?.({ data: JSON.stringify(message) });
  await vi.advanceTimersByTimeAsync(0);
}

/** The server says why it lets one go. */
const refuse = (code: string) => serverSays({ type: "error", code, message: "so it is" });

/** Which threads do so from here on. */
async function standStill(standstill: { audio: boolean; worker: boolean }): Promise<void> {
  sound.standstill.mockReturnValue(standstill);
  await vi.advanceTimersByTimeAsync(200);
}

const participant = (stream: number, name: string) => ({
  id: `id ${stream}`,
  stream,
  name,
  present: true,
  muted: false,
});

const room = { room: "room", sample_rate_hz: 48_000, owner: "id 9", locked: false, muted: false };
const welcomed = {
  type: "welcome",
  version: 1,
  ...room,
  id: "id 9",
  resumed: false,
  ice_servers: [],
  relay: null,
};

/** Comes in, and finds these there. */
async function enter(studio: Studio, participants: object[], welcome: object = {}): Promise<void> {
  await studio.join();
  await serverSays({ ...welcomed, participants, ...welcome });
}

it("remembers what was chosen by hand, and nothing that only the address asked for", async () => {
  keepStorage();
  const { settings, automation } = loadSettings("?bits=24&buffer=safe");
  const studio = new Studio("room", settings, automation);
  await studio.change({ packet: 64 });
  await studio.change({ buffer: 512 });
  expect(loadSettings("").settings).toMatchObject({ bits: 16, packet: 64, buffer: 512 });
});

it("keeps one muted who loads the page anew, in that room only, and until one unmutes oneself", async () => {
  keepStorage();
  newStudio().setSelfMuted(true);
  const studio = newStudio();
  expect(studio.state.selfMuted).toBe(true);
  expect(newStudio("another").state.selfMuted).toBe(false);
  await studio.join({ microphone: true });
  expect(sound.setMuted).toHaveBeenLastCalledWith(true);
  studio.setSelfMuted(false);
  expect(newStudio().state.selfMuted).toBe(false);
});

it.each(["null", "7", "[]", "{"])("starts with the defaults where %s is stored as settings", (text) => {
  vi.stubGlobal("localStorage", { getItem: () => text, setItem: () => {} });
  expect(loadSettings("").settings).toMatchObject({ bits: 16, packet: 128, buffer: "auto" });
});

const problems = (studio: Studio) => studio.state.problems.map(({ id }) => id);

it("says when the microphone has gone although its track goes on, and takes it again when it is back", async () => {
  const studio = newStudio();
  plugged.mockResolvedValue([{ kind: "audioinput", deviceId: "usb in", label: "" }]);
  await studio.enableMicrophone();
  expect(studio.state.microphone).toBe("on");
  await plug(["built in"], []);
  expect(studio.state.microphone).toBe("ended");
  expect(track.stop).toHaveBeenCalled();
  expect(sound.stopCapture).toHaveBeenCalled();
  expect(problems(studio)).toContain("microphone-ended");
  expect(studio.state.problems[0].remedy).toContain(`press “${microphoneAction(studio.state)}”`);
  await plug(["built in", "usb in"], []);
  expect(studio.state.microphone).toBe("on");
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  expect(problems(studio)).not.toContain("microphone-ended");
});

it.each([
  [1, "NotReadableError", "on"],
  [4, "NotReadableError", "ended"],
  [1, "NotAllowedError", "refused"],
] as const)(
  "tries again what does not open %i times by %s when it is back, and then it is %s",
  async (times, name, then) => {
    const studio = newStudio();
    plugged.mockResolvedValue([{ kind: "audioinput", deviceId: "usb in", label: "" }]);
    await studio.enableMicrophone();
    await plug(["built in"], []);
    askForMicrophone.mockClear();
    for (let n = 0; n < times; n++) askForMicrophone.mockRejectedValueOnce(new DOMException("no", name));
    await plug(["built in", "usb in"], []);
    expect(studio.state.microphone).toBe(then === "refused" ? then : "ended");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(studio.state.microphone).toBe(then);
    const asked = { audio: expect.objectContaining({ deviceId: { exact: "usb in" } }) };
    expect(askForMicrophone.mock.calls).toEqual(Array(then === "on" ? 2 : times).fill([asked]));
    expect(problems(studio)).toEqual({ on: [], ended: ["microphone-ended"], refused: ["microphone"] }[then]);
    // It is not asked for all the time, but when something is plugged in.
    await vi.advanceTimersByTimeAsync(60_000);
    askForMicrophone.mockClear();
    await plug(["built in", "usb in", "another"], []);
    expect(askForMicrophone).toHaveBeenCalledTimes(then === "ended" ? 1 : 0);
    expect(studio.state.microphone).toBe(then === "refused" ? then : "on");
  },
);

it("knows whether the browser has to ask for the microphone, and follows that", async () => {
  const permission = { state: "granted", onchange: () => {} };
  Object.assign(navigator, { permissions: { query: async () => permission } });
  const studio = newStudio();
  expect(studio.state.microphoneAllowed).toBe(false);
  await vi.advanceTimersByTimeAsync(0);
  expect(studio.state).toMatchObject({ microphone: "unasked", microphoneAllowed: true });
  permission.state = "prompt";
  permission.onchange();
  expect(studio.state.microphoneAllowed).toBe(false);
  expect(askForMicrophone).not.toHaveBeenCalled();
});

it.each(["default", "communications"])(
  "warns when a card has gone that may have been the system's %s",
  async (standIn) => {
    track.getSettings.mockReturnValue({ ...trackSettings, deviceId: standIn });
    const studio = newStudio();
    await studio.enableMicrophone();
    await plug([standIn, "built in", "usb in"], []);
    expect(problems(studio)).not.toContain("input-gone");
    await plug([standIn, "built in"], []);
    expect(studio.state.microphone).toBe("on");
    expect(problems(studio)).toContain("input-gone");
    studio.dismiss("input-gone");
    await plug([standIn], []);
    expect(problems(studio)).toContain("input-gone");
    await studio.enableMicrophone();
    expect(problems(studio)).not.toContain("input-gone");
    track.getSettings.mockReturnValue(trackSettings);
  },
);

it.each(["default", "communications"])(
  "takes no other microphone by itself when its %s ends",
  async (standIn) => {
    Object.assign(navigator, { permissions: { query: async () => ({ state: "granted" }) } });
    const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
    track.getSettings.mockReturnValue({ ...trackSettings, deviceId: standIn });
    const studio = newStudio();
    await plug([standIn, "built in", "usb in"], []);
    await studio.enableMicrophone();
    ended.onended?.();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(studio.state.microphone).toBe("ended");
    expect(askForMicrophone).toHaveBeenCalledTimes(1);
    track.getSettings.mockReturnValue(trackSettings);
  },
);

it("says of a page that came by plain http that there is no sound, and why", async () => {
  vi.stubGlobal("isSecureContext", false);
  vi.stubGlobal("crossOriginIsolated", false);
  const studio = newStudio();
  const said = () => studio.state.problems.map(({ id, remedy }) => [id, /https/.test(remedy)]);
  expect(said()).toEqual([["sound", true]]);
  startSound.mockRejectedValueOnce(new TypeError("reading 'addModule'"));
  await studio.join();
  expect(said()).toEqual([["sound", true]]);
});

it.each([new NotLoaded("404"), new Error("no output")])(
  "offers to try a sound again that failed in the lobby by %s, and says so no more once it runs",
  async (error) => {
    const studio = newStudio();
    const failed = () => studio.state.problems.find(({ id }) => id === "sound");
    startSound.mockRejectedValueOnce(error);
    await studio.enableMicrophone();
    startSound.mockRejectedValueOnce(error);
    failed()?.action?.run();
    await vi.advanceTimersByTimeAsync(0);
    expect(startSound).toHaveBeenCalledTimes(2);
    failed()?.action?.run();
    await vi.advanceTimersByTimeAsync(0);
    expect(startSound).toHaveBeenCalledTimes(3);
    expect(studio.state).toMatchObject({ phase: "lobby", problems: [] });
    expect(sound.capture).toHaveBeenCalledTimes(1);
  },
);

it("says of a sound that did not start that nothing is captured or measured", async () => {
  const studio = newStudio();
  startSound.mockRejectedValueOnce(new Error("no output"));
  await studio.enableMicrophone();
  expect(studio.state).toMatchObject({ microphone: "on", captures: false });
  await studio.calibrate();
  const said = { phase: "failed", problem: "The sound does not run. Start it, then measure again." };
  expect(studio.state.calibration).toMatchObject(said);
  await studio.enableMicrophone();
  expect(studio.state).toMatchObject({ captures: true, calibration: { phase: "none" } });
});

it("says no more that a sound failed that runs by another way", async () => {
  const studio = newStudio();
  startSound.mockRejectedValueOnce(new NotLoaded("404"));
  await studio.enableMicrophone();
  expect(problems(studio)).toEqual(["sound"]);
  await studio.change({ channels: 1 });
  await studio.change({ channels: 2 });
  expect(problems(studio)).toEqual([]);
});

it("says each time that Opus was chosen and cannot be", async () => {
  const studio = newStudio();
  await studio.change({ bits: "opus", channels: 4 });
  await enter(studio, []);
  expect(problems(studio)).toContain("opus");
  studio.dismiss("opus");
  await studio.change({ bits: 24 });
  await studio.change({ bits: "opus" });
  expect(problems(studio)).toContain("opus");
});

it("says that Opus cannot be encoded as long as the worker does, or where the browser has no encoder", async () => {
  const studio = newStudio();
  await enter(studio, []);
  await studio.change({ bits: "opus" });
  const [, receive] = startSound.mock.lastCall as unknown as [object, (message: FromWorker) => void];
  const workerSays = (reason: string | null) => {
    receive({ type: "opus-failed", reason });
    return [problems(studio).includes("opus"), studio.stats().format];
  };
  expect(workerSays(null)).toEqual([true, "s16"]);
  vi.stubGlobal("AudioEncoder", class {});
  expect(workerSays("No packet came of it.")).toEqual([true, "s16"]);
  expect(workerSays(null)).toEqual([false, "opus"]);
});

it("opens a microphone anew that comes late, the same one, and without a word", async () => {
  const studio = newStudio();
  await studio.enableMicrophone();
  askForMicrophone.mockClear();
  sound.capture.mockClear();
  sound.isInputLate.mockReturnValue(true);
  page.visibilityState = "hidden";
  await vi.advanceTimersByTimeAsync(5_000);
  expect(track.stop).not.toHaveBeenCalled();
  page.visibilityState = "visible";
  await vi.advanceTimersByTimeAsync(100);
  sound.isInputLate.mockReturnValue(false);
  expect(track.stop).toHaveBeenCalled();
  expect(askForMicrophone).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(askForMicrophone).toHaveBeenCalledTimes(1);
  expect(askForMicrophone).toHaveBeenCalledWith({
    audio: expect.objectContaining({ deviceId: { exact: "usb in" } }),
  });
  expect(sound.capture).toHaveBeenCalledTimes(1);
  expect(studio.state).toMatchObject({ microphone: "on", problems: [] });
});

it.each([
  ["NotReadableError", 1, "on"],
  ["NotReadableError", 3, "busy"],
  ["OverconstrainedError", 3, "ended"],
])(
  "tries again what does not open anew by %s %i times, and then it is %s",
  async (name, times, microphone) => {
    const studio = newStudio();
    await studio.enableMicrophone();
    for (let n = 0; n < times; n++) askForMicrophone.mockRejectedValueOnce(new DOMException("no", name));
    sound.isInputLate.mockReturnValueOnce(true);
    await vi.advanceTimersByTimeAsync(3_000);
    expect(studio.state.microphone).toBe(microphone);
    expect(studio.state.problems).toHaveLength(times === 1 ? 0 : 1);
    if (microphone !== "ended") return;
    await plug(["built in", "usb in"], []);
    expect(studio.state.microphone).toBe("on");
  },
);

it("opens the one that was chosen while another was being opened anew", async () => {
  const studio = newStudio();
  await studio.enableMicrophone();
  sound.isInputLate.mockReturnValueOnce(true);
  await vi.advanceTimersByTimeAsync(100);
  await studio.change({ inputDeviceId: "built in" });
  await vi.advanceTimersByTimeAsync(1_000);
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  expect(askForMicrophone).toHaveBeenLastCalledWith({
    audio: expect.objectContaining({ deviceId: { exact: "built in" } }),
  });
});

it("opens no microphone anew that was closed meanwhile", async () => {
  const studio = newStudio();
  await studio.join({ microphone: true });
  sound.isInputLate.mockReturnValueOnce(true);
  await vi.advanceTimersByTimeAsync(100);
  expect(track.stop).toHaveBeenCalled();
  studio.leave();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(askForMicrophone).toHaveBeenCalledTimes(1);
  expect(studio.state.microphone).toBe("unasked");
});

it("asks for no microphone again that ended while it is still there", async () => {
  const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
  const studio = newStudio();
  plugged.mockResolvedValue([{ kind: "audioinput", deviceId: "usb in", label: "" }]);
  await studio.enableMicrophone();
  ended.onended?.();
  await plug(["usb in"], []);
  expect(studio.state.microphone).toBe("ended");
  expect(askForMicrophone).toHaveBeenCalledTimes(1);
});

it("takes a microphone again that ended and is there, while the browser allows it", async () => {
  const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
  const permission = { state: "granted" };
  Object.assign(navigator, { permissions: { query: async () => permission } });
  const studio = newStudio();
  await studio.enableMicrophone();
  ended.onended?.();
  await vi.advanceTimersByTimeAsync(0);
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  expect(studio.state.microphone).toBe("on");
  expect(problems(studio)).not.toContain("microphone-ended");
  permission.state = "prompt";
  ended.onended?.();
  await vi.advanceTimersByTimeAsync(2_000);
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  expect(studio.state.microphone).toBe("ended");
});

it.each(["ended", "late"])(
  "takes a microphone again that comes back while it is tried, as it was %s",
  async (why) => {
    const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
    Object.assign(navigator, { permissions: { query: async () => ({ state: "granted" }) } });
    const studio = newStudio();
    await studio.enableMicrophone();
    await plug(["built in", "usb in"], []);
    const times = why === "ended" ? 4 : 3;
    for (let n = 0; n < times; n++)
      askForMicrophone.mockRejectedValueOnce(new DOMException("no", "NotFoundError"));
    if (why === "ended") ended.onended?.();
    else sound.isInputLate.mockReturnValueOnce(true);
    await vi.advanceTimersByTimeAsync(100);
    await plug(["built in"], []);
    await vi.advanceTimersByTimeAsync(1_500);
    await plug(["built in", "usb in"], []);
    await vi.advanceTimersByTimeAsync(5_000);
    expect(studio.state.microphone).toBe("on");
    expect(askForMicrophone).toHaveBeenCalledTimes(1 + times + 1);
  },
);

it("says once that a microphone has gone, while it is tried again", async () => {
  const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
  Object.assign(navigator, { permissions: { query: async () => ({ state: "granted" }) } });
  const studio = newStudio();
  await studio.enableMicrophone();
  for (let n = 0; n < 4; n++) askForMicrophone.mockRejectedValueOnce(new DOMException("no", "NotFoundError"));
  ended.onended?.();
  const cards = new Set<boolean>();
  studio.subscribe(() => cards.add(problems(studio).includes("microphone-ended")));
  for (const ms of [0, 100, 2_000]) {
    await vi.advanceTimersByTimeAsync(ms);
    expect(problems(studio)).toEqual(["microphone-ended"]);
  }
  expect(askForMicrophone).toHaveBeenCalledTimes(5);
  expect([...cards]).toEqual([true]);
  studio.leave();
  expect(problems(studio)).toEqual([]);
});

it("says of the system's microphone that ended no more that it may be another", async () => {
  const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
  track.getSettings.mockReturnValue({ ...trackSettings, deviceId: "default" });
  const studio = newStudio();
  await plug(["default", "usb in"], []);
  await studio.enableMicrophone();
  await plug(["default"], []);
  expect(problems(studio)).toEqual(["input-gone"]);
  ended.onended?.();
  expect(problems(studio)).toEqual(["microphone-ended"]);
  track.getSettings.mockReturnValue(trackSettings);
});

it("joins anew while the browser still asks for a microphone from before", async () => {
  const studio = newStudio();
  await studio.join();
  askForMicrophone.mockReturnValueOnce(new Promise(() => {}));
  const enabled = studio.enableMicrophone();
  studio.leave();
  await enabled;
  expect(studio.state.microphone).toBe("unasked");
});

it("asks for the default microphone again when something is plugged in after it has gone", async () => {
  const ended: { onended: (() => void) | null } = Object.assign(track, { onended: null });
  track.getSettings.mockReturnValue({ ...trackSettings, deviceId: "default" });
  const studio = newStudio();
  await plug(["default", "usb in"], []);
  await studio.enableMicrophone();
  ended.onended?.();
  await plug(["default"], []);
  expect(askForMicrophone).toHaveBeenCalledTimes(1);
  await plug(["default", "usb in"], []);
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  expect(studio.state.microphone).toBe("on");
  track.getSettings.mockReturnValue(trackSettings);
});

it("plays on the system's output while the chosen one is not there, and says so", async () => {
  const { settings, automation } = loadSettings("?outputDeviceId=usb+out");
  const studio = new Studio("room", settings, automation);
  plugged.mockResolvedValue([{ kind: "audiooutput", deviceId: "built in", label: "" }]);
  await studio.enableMicrophone();
  await vi.advanceTimersByTimeAsync(0);
  expect(sound.setOutput).toHaveBeenLastCalledWith("");
  expect(problems(studio)).toContain("output-gone");
  await plug([], ["built in", "usb out"]);
  expect(sound.setOutput).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(6_000);
  expect(sound.setOutput).toHaveBeenLastCalledWith("usb out");
  expect(problems(studio)).not.toContain("output-gone");
  await plug([], ["built in"]);
  expect(sound.setOutput).toHaveBeenLastCalledWith("");
  await studio.change({ outputDeviceId: "built in" });
  expect(sound.setOutput).toHaveBeenLastCalledWith("built in");
  expect(problems(studio)).not.toContain("output-gone");
  expect(sound.setOutput).toHaveBeenCalledTimes(4);
});

it("tries an output again that is back and did not open, and says nothing of the system's own if that does not either", async () => {
  const { settings, automation } = loadSettings("?outputDeviceId=usb+out");
  const studio = new Studio("room", settings, automation);
  const fail = () => sound.setOutput.mockRejectedValueOnce(new Error("no such output"));
  plugged.mockResolvedValue([{ kind: "audiooutput", deviceId: "usb out", label: "" }]);
  await studio.join();
  fail();
  await plug([], ["built in"]);
  expect(problems(studio)).toEqual(["output"]);
  await vi.advanceTimersByTimeAsync(6_000);
  fail();
  await plug([], ["built in", "usb out"]);
  expect(problems(studio)).toEqual(["output"]);
  sound.setOutput.mockClear();
  await vi.advanceTimersByTimeAsync(6_000);
  expect(sound.setOutput).not.toHaveBeenCalled();
  await plug([], ["built in", "usb out", "another"]);
  expect(sound.setOutput.mock.calls).toEqual([["usb out"]]);
  expect(problems(studio)).toEqual([]);
});

/** As the browser says it of the sound that was started last. */
async function failOutput(): Promise<void> {
  const [, , failed] = startSound.mock.lastCall as unknown as [unknown, unknown, () => void];
  failed();
  await vi.advanceTimersByTimeAsync(0);
}

it("follows what the browser plays on by itself before it may use the chosen output, and where that fails", async () => {
  const { settings, automation } = loadSettings("?outputDeviceId=usb+out");
  const studio = new Studio("room", settings, automation);
  const outputIs = () => [sound.context.sinkId, problems(studio)];
  const fail = () => {
    sound.context.sinkId = "";
    return failOutput();
  };
  await studio.join();
  await fail();
  expect(outputIs(), "the microphone is not allowed").toEqual(["", ["output-gone"]]);
  plugged.mockResolvedValue([{ kind: "audiooutput", deviceId: "usb out", label: "" }]);
  await studio.enableMicrophone();
  expect(outputIs()).toEqual(["usb out", []]);
  await fail();
  expect(outputIs(), "it failed as soon as it was taken").toEqual(["", []]);
  await vi.advanceTimersByTimeAsync(6_000);
  expect(outputIs(), "it was there all the time").toEqual(["usb out", []]);
  plugged.mockResolvedValue([{ kind: "audiooutput", deviceId: "built in", label: "" }]);
  await fail();
  expect(outputIs(), "it has gone").toEqual(["", ["output-gone"]]);
  await vi.advanceTimersByTimeAsync(6_000);
  await plug([], ["built in", "usb out"]);
  expect(outputIs()).toEqual(["usb out", []]);
  studio.leave();
  sound.setOutput.mockClear();
  await fail();
  expect(sound.setOutput).not.toHaveBeenCalled();
});

it("says of an output that could not be opened no more in a sound that was started anew", async () => {
  const studio = newStudio();
  await studio.join();
  sound.setOutput.mockRejectedValueOnce(new Error("no such output"));
  await studio.change({ outputDeviceId: "usb out" });
  expect(problems(studio)).toEqual(["output"]);
  studio.leave();
  await studio.rejoin();
  expect(problems(studio)).toEqual([]);
});

it("asks for no microphone when one joins to listen only, nor when one comes back so", async () => {
  const studio = newStudio();
  await studio.join();
  expect(Socket.last).not.toBeNull();
  studio.leave();
  await studio.rejoin();
  expect(askForMicrophone).not.toHaveBeenCalled();
  expect(sound.capture).not.toHaveBeenCalled();
  expect(studio.state.microphone).toBe("unasked");
});

it("opens the microphone where it is told to, and again when one comes back", async () => {
  const studio = newStudio();
  await studio.join({ microphone: true });
  expect(studio.state.microphone).toBe("on");
  studio.leave();
  expect(studio.state.microphone).toBe("unasked");
  await studio.rejoin();
  expect(studio.state.microphone).toBe("on");
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
});

it("leads from a room that was left to the lobby, with the microphone if it was on", async () => {
  const studio = newStudio();
  await enter(studio, []);
  studio.leave();
  await studio.toLobby();
  expect(studio.state).toMatchObject({ phase: "lobby", microphone: "unasked" });
  await studio.join({ microphone: true });
  await refuse("room_full");
  expect(studio.state).toMatchObject({ phase: "failed", microphone: "unasked" });
  await studio.toLobby();
  expect(studio.state).toMatchObject({ phase: "lobby", microphone: "on" });
  expect(sound.capture).toHaveBeenCalledTimes(2);
});

it("is the same one who comes back, so that the owner's mute lasts", async () => {
  const secret = () => {
    Socket.last?.onopen?.();
    return Socket.last?.said.find(({ type }) => type === "hello")?.secret;
  };
  const studio = newStudio();
  await studio.join();
  const before = secret();
  expect(before).toMatch(/^[0-9a-f]{64}$/);
  studio.leave();
  await studio.rejoin();
  expect(secret()).toBe(before);
  const other = newStudio();
  await other.join();
  expect(secret()).not.toBe(before);
});

it.each(["allowed", "refused"])("opens no microphone that is %s after the room was left", async (answer) => {
  const studio = newStudio();
  await studio.join();
  let allow = (_: typeof microphone) => {};
  let refuse = (_: Error) => {};
  const answered = new Promise<typeof microphone>((resolve, reject) => {
    allow = resolve;
    refuse = reject;
  });
  askForMicrophone.mockReturnValueOnce(answered);
  const enabled = studio.enableMicrophone();
  expect(studio.state.microphone).toBe("asking");
  studio.leave();
  if (answer === "allowed") allow(microphone);
  else refuse(new DOMException("no", "NotAllowedError"));
  await enabled;
  expect(track.stop).toHaveBeenCalledTimes(answer === "allowed" ? 1 : 0);
  expect(sound.capture).not.toHaveBeenCalled();
  expect(studio.state).toMatchObject({ microphone: "unasked", problems: [] });
});

it.each([
  ["NotAllowedError", "refused", "allow the microphone"],
  ["NotReadableError", "busy", "another program"],
  ["NotFoundError", "none", "Plug one in"],
  ["OverconstrainedError", "none", "choose another"],
  ["TypeError", "failed", "The browser says"],
])("says of a microphone that fails by %s that it is %s, and what to do", async (name, fault, remedy) => {
  const studio = newStudio();
  askForMicrophone.mockRejectedValueOnce(new DOMException("no", name));
  await studio.enableMicrophone();
  expect(studio.state.microphone).toBe(fault);
  expect(studio.state.problems).toMatchObject([{ id: "microphone" }]);
  expect(studio.state.problems[0].remedy).toContain(remedy);
  studio.leave();
  expect(studio.state.problems).toEqual([]);
});

it("says that a browser which cannot resample records at another rate than the room's", async () => {
  const close = vi.fn(async () => {});
  vi.stubGlobal(
    "AudioContext",
    class {
      sampleRate = 44_100;
      close = close;
    },
  );
  sound.capture.mockImplementationOnce(() => {
    throw new DOMException("different sample-rate", "NotSupportedError");
  });
  const studio = newStudio();
  await studio.enableMicrophone();
  expect(studio.state.microphone).toBe("mismatched");
  expect(track.stop).toHaveBeenCalled();
  expect(close).toHaveBeenCalled();
  expect(studio.state.problems).toMatchObject([{ id: "microphone" }]);
  expect(studio.state.problems[0].remedy).toMatch(/44100 Hz.*48000 Hz/);
  sound.capture.mockImplementationOnce(() => {
    throw new TypeError("no track");
  });
  await studio.enableMicrophone();
  expect(studio.state.microphone).toBe("failed");
  await studio.enableMicrophone();
  expect(studio.state).toMatchObject({ microphone: "on", problems: [] });
});

it.each<[string, (studio: Studio) => unknown]>([
  ["left", (studio) => studio.leave()],
  ["removed", () => refuse("removed")],
  ["failed", () => refuse("replaced")],
  ["lobby", () => refuse("passphrase")],
  ["joining", () => standStill({ audio: true, worker: false })],
])("is %s without a word that the others went", async (phase, end) => {
  const studio = newStudio();
  await enter(studio, [participant(1, "Ann"), participant(2, "Bob")]);
  const others: number[] = [];
  studio.subscribe(() => {
    if (studio.state.phase === "joined") others.push(studio.state.participants.length);
  });
  await end(studio);
  studio.state.problems.find(({ id }) => id === "sound-stopped")?.action?.run();
  await vi.advanceTimersByTimeAsync(0);
  expect(studio.state).toMatchObject({ phase, participants: [] });
  expect(others.filter((count) => count < 2)).toEqual([]);
});

it("says when the owner lets one be heard again, and that one owns the room, but not how one found it", async () => {
  const studio = newStudio();
  const said: string[] = [];
  let before = studio.state;
  studio.subscribe(() => {
    said.push(...ownChanges(before, studio.state));
    before = studio.state;
  });
  await enter(studio, []);
  studio.leave();
  await enter(studio, [participant(1, "Ann")], { owner: "id 1", muted: true, locked: true });
  expect(said).toEqual([]);
  await serverSays({ type: "muted", id: "id 9", muted: false });
  expect(said.splice(0)).toEqual(["The owner lets you be heard again."]);
  await serverSays({ type: "left", id: "id 1" });
  await serverSays({ type: "owner", id: "id 9" });
  expect(said.splice(0)).toEqual(["You are the room's owner now."]);
  await serverSays({ type: "locked", locked: true, passphrase: "byrd" });
  expect(said.splice(0)).toEqual(["The passphrase is changed."]);
  await serverSays({ type: "locked", locked: false, passphrase: null });
  expect(said.splice(0)).toEqual(["The room is unlocked."]);
  await serverSays({ type: "muted", id: "id 9", muted: true });
  await refuse("passphrase");
  expect(studio.state).toMatchObject({ phase: "lobby", mutedByOwner: false, problems: [] });
  await enter(studio, []);
  expect(said).toEqual([]);
});

it("says that one is heard again once the microphone is back, and not that one that the system mutes goes or is opened anew", async () => {
  const muted: { muted: boolean; onmute?: () => void; onended?: () => void } = Object.assign(track, {
    muted: false,
  });
  const studio = newStudio();
  const said: string[] = [];
  let before = studio.state;
  studio.subscribe(() => {
    said.push(...ownChanges(before, studio.state));
    before = studio.state;
  });
  plugged.mockResolvedValue([{ kind: "audioinput", deviceId: "usb in", label: "" }]);
  await enter(studio, []);
  await studio.enableMicrophone();
  expect(said.splice(0)).toEqual(["You are heard now."]);
  muted.muted = true;
  muted.onmute?.();
  sound.isInputLate.mockReturnValueOnce(true);
  await vi.advanceTimersByTimeAsync(3_000);
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  await plug(["built in"], []);
  expect(studio.state).toMatchObject({ microphone: "ended", inputMuted: false });
  expect(problems(studio)).toEqual(["microphone-ended"]);
  expect(said).toEqual([]);
  muted.muted = false;
  await plug(["built in", "usb in"], []);
  expect(said).toHaveLength(1);
});

it("says that a change was one too many, and stays in the room", async () => {
  const studio = newStudio();
  await enter(studio, [participant(1, "Ann")]);
  await refuse("not_now");
  expect(studio.state.phase).toBe("joined");
  expect(problems(studio)).toEqual(["not-ordered"]);
});

it("leaves it to the page of those who were removed to say so", async () => {
  const studio = newStudio();
  await studio.join();
  await refuse("removed");
  expect(studio.state).toMatchObject({ phase: "removed", problems: [] });
});

it("tells those of one name apart by their numbers in the room", async () => {
  const studio = newStudio();
  const names = () => studio.state.participants.map(({ name }) => name);
  await enter(studio, [participant(2, "Musician"), participant(3, "Ann")]);
  expect(names()).toEqual(["Musician", "Ann"]);
  await serverSays({ type: "joined", participant: participant(5, "Musician") });
  expect(names()).toEqual(["Musician 2", "Ann", "Musician 5"]);
  expect(studio.stats().peers.map(({ name }) => name)).toEqual(["Musician", "Ann", "Musician"]);
  await serverSays({ type: "renamed", id: "id 5", name: "Bob" });
  expect(names()).toEqual(["Musician", "Ann", "Bob"]);
});

it("tells who has one's own name apart from oneself, as the others do", async () => {
  const studio = newStudio();
  await studio.change({ name: "Ann" });
  await enter(studio, [participant(2, "ann"), participant(3, "Bob")]);
  expect(studio.state.participants.map(({ name }) => name)).toEqual(["ann 2", "Bob"]);
  await studio.change({ name: "Bob" });
  expect(studio.state.participants.map(({ name }) => name)).toEqual(["ann", "Bob 3"]);
});

it("mutes whom the owner had muted for everyone, and who has loaded the page anew, again", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Ann"), participant(3, "Bob")]);
  await serverSays({ type: "muted", id: "id 2", muted: true });
  const orders = () => Socket.last?.said.filter(({ type }) => type === "moderate");
  await serverSays({ type: "left", id: "id 2" });
  await serverSays({ type: "left", id: "id 3" });
  await serverSays({ type: "joined", participant: participant(4, "Bob") });
  expect(orders()).toEqual([]);
  await serverSays({ type: "joined", participant: participant(5, "Ann") });
  expect(orders()).toEqual([{ type: "moderate", to: "id 5", action: "mute" }]);
  // One whose page ended without a word is still waited for when it is back.
  await serverSays({ type: "muted", id: "id 5", muted: true });
  await serverSays({ type: "away", id: "id 5" });
  await serverSays({ type: "joined", participant: participant(6, "Ann") });
  expect(orders()).toHaveLength(2);
  // Her first place ends; then the owner unmutes her, and that outlives a reload, too.
  await serverSays({ type: "muted", id: "id 6", muted: true });
  await serverSays({ type: "left", id: "id 5" });
  await serverSays({ type: "muted", id: "id 6", muted: false });
  await serverSays({ type: "left", id: "id 6" });
  await serverSays({ type: "joined", participant: participant(7, "Ann") });
  expect(orders()).toHaveLength(2);
});

it("mutes nobody again whose name is nobody's own", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Antiphon"), participant(3, "Antiphon")]);
  await serverSays({ type: "muted", id: "id 2", muted: true });
  await serverSays({ type: "left", id: "id 2" });
  await serverSays({ type: "joined", participant: participant(4, "Antiphon") });
  expect(Socket.last?.said.filter(({ type }) => type === "moderate")).toEqual([]);
});

it("shows names as they are seen, and tells those that look alike apart", async () => {
  const studio = newStudio();
  const names = () => studio.state.participants.map(({ name }) => name);
  await enter(studio, [participant(2, "Ann"), participant(3, "Ann\u200b"), participant(4, "\u200b")]);
  expect(names()).toEqual(["Ann 2", "Ann 3", "Musician"]);
  expect(studio.stats().peers.map(({ name }) => name)).toEqual(["Ann", "Ann", "Musician"]);
  await serverSays({ type: "renamed", id: "id 3", name: " \u202eBob" });
  await serverSays({ type: "renamed", id: "id 4", name: "aNN" });
  expect(names()).toEqual(["Ann 2", "Bob", "aNN 4"]);
});

it("mixes those who come back as before, by who they are and else by name", async () => {
  const studio = newStudio();
  const mixOf = (id: string) => {
    const { gain, pan, muted, solo, buffer, pin } =
      studio.state.participants.find((person) => person.id === id) ?? {};
    return [gain, pan, muted, solo, buffer, pin];
  };
  const untouched = [1, 0, false, false, "auto", "auto"];
  const come = (stream: number, name: string) =>
    serverSays({ type: "joined", participant: participant(stream, name) });
  const leave = (id: string) => serverSays({ type: "left", id });
  await enter(studio, [participant(2, "Ann"), participant(3, "Musician")]);
  for (const id of ["id 2", "id 3"]) {
    studio.setGain(id, 0.5);
    studio.setPan(id, -1);
    studio.setMuted(id, true);
    studio.setSolo(id, true);
    studio.setBuffer(id, "safe");
    studio.setPin(id, "relay");
  }
  const mixed = [0.5, -1, true, true, "safe", "relay"];
  await come(4, "Ann");
  expect(mixOf("id 4"), "another of that name").toEqual(untouched);
  await leave("id 4");
  await serverSays({ type: "away", id: "id 2" });
  sound.addStream.mockClear();
  sound.command.mockClear();
  await come(5, "Ann");
  expect(mixOf("id 5"), "loaded again").toEqual(mixed);
  const [[stream, buffer]] = sound.addStream.mock.calls;
  expect(buffer).toBe("safe");
  const { gain, pan, solo, mute } = COMMAND;
  expect(new Set(sound.command.mock.calls)).toEqual(
    new Set([
      [gain, stream, 0.5],
      [pan, stream, -1],
      [solo, stream, 1],
      [mute, stream, 1],
    ]),
  );
  await leave("id 3");
  await come(6, "Musician");
  expect(mixOf("id 6"), "no name of their own").toEqual(untouched);
  studio.leave();
  await enter(studio, [participant(3, "Musician"), participant(7, "Bob")]);
  expect(mixOf("id 3")).toEqual(mixed);
  expect(mixOf("id 7")).toEqual(untouched);
  await serverSays({ type: "renamed", id: "id 3", name: "Eve" });
  await leave("id 3");
  await studio.change({ buffer: 512 });
  await come(8, "Eve");
  expect(mixOf("id 8"), "the buffer of all was changed").toEqual([0.5, -1, true, true, 512, "relay"]);
});

it("mixes players as before when the page is loaded anew, and nobody solo", async () => {
  keepStorage();
  const before = newStudio();
  await enter(before, [participant(2, "Ann")]);
  before.setGain("id 2", 0.5);
  before.setMuted("id 2", true);
  before.setSolo("id 2", true);
  sound.command.mockClear();
  const studio = newStudio();
  await enter(studio, [participant(3, "Ann")]);
  expect(studio.state.participants).toMatchObject([{ gain: 0.5, muted: true, solo: false, buffer: "auto" }]);
  const [stream] = sound.addStream.mock.lastCall!;
  expect(sound.command.mock.calls).toContainEqual([COMMAND.gain, stream, 0.5]);
  expect(sound.command.mock.calls).toContainEqual([COMMAND.mute, stream, 1]);
});

it.each(["gone", "there"])(
  "leaves what is remembered of one who is %s to them, though another takes their name for a while",
  async (where) => {
    const studio = newStudio();
    await enter(studio, [participant(2, "Ann"), participant(3, "Bob")]);
    const leave = () => serverSays({ type: "left", id: "id 2" });
    studio.setGain("id 2", 0.5);
    studio.setMuted("id 3", true);
    if (where === "gone") await leave();
    for (const name of ["Ann", "Bob"]) await serverSays({ type: "renamed", id: "id 3", name });
    if (where === "there") await leave();
    await serverSays({ type: "joined", participant: participant(4, "Ann") });
    expect(studio.state.participants.find(({ id }) => id === "id 4")).toMatchObject({
      gain: 0.5,
      muted: false,
    });
    await serverSays({ type: "left", id: "id 3" });
    await serverSays({ type: "joined", participant: participant(5, "Bob") });
    expect(studio.state.participants.find(({ id }) => id === "id 5")).toMatchObject({ gain: 1, muted: true });
  },
);

it("says of sound that stopped what its restart costs the room's owner", async () => {
  const studio = newStudio();
  const remedy = async () => {
    await standStill({ audio: false, worker: false });
    await standStill({ audio: true, worker: false });
    return studio.state.problems[0]?.remedy;
  };
  await enter(studio, []);
  expect(await remedy()).not.toContain("own it");
  await serverSays({ type: "joined", participant: participant(2, "Ann") });
  expect(await remedy()).toContain("somebody else will own it");
  await serverSays({ type: "owner", id: "id 2" });
  expect(await remedy()).not.toContain("own it");
});

it("says once that the sound has stopped, while a thread of it stands still, and that nobody is connected if it is the worker", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Ann")]);
  peers[0].connection = "connected";
  const whileStill = async (standstill: { audio: boolean; worker: boolean }) => {
    await standStill(standstill);
    return [problems(studio), studio.state.participants[0].connection];
  };
  const stopped = ["sound-stopped"];
  expect(await whileStill({ audio: false, worker: true })).toEqual([stopped, "interrupted"]);
  studio.dismiss("sound-stopped");
  expect(problems(studio), "nothing else starts it again").toEqual(stopped);
  expect(await whileStill({ audio: true, worker: true })).toEqual([stopped, "interrupted"]);
  expect(await whileStill({ audio: false, worker: false })).toEqual([[], "connected"]);
  expect(await whileStill({ audio: true, worker: false })).toEqual([stopped, "connected"]);
  expect(await whileStill({ audio: false, worker: false }), "it goes on by itself").toEqual([
    [],
    "connected",
  ]);
});

it("counts how often one was not let in, though it be for the same reason", async () => {
  const studio = newStudio();
  for (const [code, passphrase, refusals] of [
    ["passphrase", "wrong", 1],
    ["passphrase", "wrong", 2],
    ["too_fast", "rationed", 3],
    ["too_fast", "rationed", 4],
  ] as const) {
    await studio.join({ passphrase: "guess" });
    await refuse(code);
    expect(studio.state).toMatchObject({ phase: "lobby", passphrase, refusals });
  }
  await studio.join({ passphrase: "guess" });
  studio.stopJoining();
  expect(studio.state).toMatchObject({ phase: "lobby", passphrase: "rationed", refusals: 4 });
});

it("keeps no word of an earlier try above the room", async () => {
  const studio = newStudio();
  await studio.join();
  await refuse("room_full");
  expect(studio.state.problems).toMatchObject([{ id: "server", title: "The room is full." }]);
  await studio.rejoin();
  expect(studio.state.problems).toEqual([]);
});

it.each([
  ["bad_version", true],
  ["bad_message", true],
  ["replaced", false],
  ["room_full", false],
])("lets one reload the page where joining again would fail again: after %s %s", async (code, isStale) => {
  const reload = vi.fn();
  vi.stubGlobal("location", { ...location, reload });
  const studio = newStudio();
  await studio.join();
  await refuse(code);
  const [{ action, remedy }] = studio.state.problems;
  expect(action?.label).toBe(isStale ? "Reload the page" : undefined);
  action?.run();
  expect(reload).toHaveBeenCalledTimes(isStale ? 1 : 0);
  if (code === "replaced") expect(remedy).toContain("Press “Try again”");
});

it("says of oneself that one cannot be heard through the network, not that a firewall is at one of two", async () => {
  const studio = newStudio();
  await enter(studio, []);
  await studio.setLoop(true);
  expect(studio.state.problems).toMatchObject([{ title: "You cannot hear yourself through the network." }]);
  await studio.setLoop(false);
  expect(studio.state.problems).toEqual([]);
});

it("hears oneself by new lanes once the network process has dropped the old ones, and by none when that is over", async () => {
  const studio = newStudio();
  await enter(studio, []);
  await studio.setLoop(true);
  const [, receive] = startSound.mock.lastCall as unknown as [unknown, (message: object) => void];
  const dropped = loops.at(-1)!.stream;
  for (const lane of [0, 0, 1, 1]) receive({ type: "lane-closed", stream: dropped, lane, epoch: 0 });
  expect(loops.filter(({ stream }) => stream > dropped)).toHaveLength(1);
  expect(studio.state.looping).toBe(true);
  await studio.setLoop(false);
  receive({ type: "lane-closed", stream: loops.at(-1)!.stream, lane: 0, epoch: 0 });
  expect(studio.state.looping).toBe(false);
});

it("tells those who are there of each number of lanes that is chosen, and of none", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Ann")]);
  for (const lanes of [1, 4, "auto"] as const) await studio.change({ lanes });
  expect(wantLanes.mock.calls).toEqual([[1], [4], ["auto"]]);
});

it("knows who owns the room, and who is in it, when one has come in", async () => {
  const studio = newStudio();
  const seen: unknown[] = [];
  studio.subscribe(() => {
    const { phase, isOwner, participants } = studio.state;
    if (phase === "joined") seen.push([isOwner, participants.map((person) => person.isOwner)]);
  });
  await studio.join();
  const room = { room: "room", sample_rate_hz: 48_000, owner: "id 1", locked: false, muted: false };
  const oneself = { id: "id 9", resumed: false, ice_servers: [], relay: null };
  const participants = [participant(1, "Ann"), participant(2, "Bob")];
  await serverSays({ type: "welcome", version: 1, ...room, ...oneself, participants });
  expect(seen.length).toBeGreaterThan(0);
  for (const state of seen) expect(state).toEqual([false, [true, false]]);
});

it("keeps peaks for each reader until it asks, though those who publish them begin anew each time", async () => {
  const numbers = new Float64Array(100);
  const at = WORKLET_STATS.streams + 1;
  vi.spyOn(sound, "offsetOf").mockReturnValue(at);
  sound.numbers.mockReturnValue(numbers);
  const studio = newStudio();
  await enter(studio, [participant(1, "Ann")]);
  numbers[at + STREAM_STATS.channels] = 2;
  const publish = async (left: number, right: number) => {
    numbers[WORKLET_STATS.quanta]++;
    numbers[at + STREAM_STATS.peakLeft] = left;
    numbers[at + STREAM_STATS.peakRight] = right;
    await vi.advanceTimersByTimeAsync(50);
  };
  const told = () => studio.automationStats().peers.map(({ peak }) => peak);
  const drawn = () => studio.levels().participant("id 1");
  await publish(0.5, 0.125);
  await publish(0, 0.25);
  expect(told()).toEqual([[0.5, 0.25]]);
  await publish(0, 0);
  expect(told()).toEqual([[0, 0]]);
  expect(drawn(), "read by the other only").toEqual([0.5, 0.25]);
  expect(drawn(), "nothing new").toEqual([0.5, 0.25]);
  studio.stats();
  await publish(0.75, 0);
  studio.stats();
  await publish(0, 0);
  expect([told(), drawn()]).toEqual([[[0.75, 0]], [0.75, 0]]);
  // Nobody looked at the page.
  await publish(1, 1);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(drawn(), "nothing new since").toEqual([]);
  await publish(1, 1);
  await vi.advanceTimersByTimeAsync(1_000);
  await publish(0.25, 0);
  expect([told(), drawn()]).toEqual([[[1, 1]], []]);
  await publish(0.25, 0);
  expect(drawn()).toEqual([0.25, 0]);
  sound.numbers.mockReturnValue(undefined);
});

it("goes back to the lobby when it cannot even ask for the devices", async () => {
  const studio = newStudio();
  plugged.mockResolvedValueOnce([]).mockRejectedValueOnce(new Error("no devices"));
  await studio.join({ microphone: true });
  expect(studio.state.phase).toBe("lobby");
  expect(studio.state.problems[0].remedy).toContain("no devices");
});

it("goes back to the lobby when the sound does not start at the room's rate", async () => {
  const studio = newStudio();
  await studio.join({ microphone: true });
  startSound.mockRejectedValueOnce(new Error("no such rate"));
  await enter(studio, [], { sample_rate_hz: 96_000 });
  expect(studio.state).toMatchObject({ phase: "lobby", signalling: "offline", problems: [{ id: "sound" }] });
  expect(studio.state.problems[0].remedy).toContain("no such rate");
  sound.capture.mockClear();
  await enter(studio, [], { sample_rate_hz: 96_000 });
  expect(studio.state).toMatchObject({ phase: "joined", microphone: "on", problems: [] });
  expect(sound.capture).toHaveBeenCalledTimes(1);
});

it.each([
  ["the microphone", "left"],
  ["the microphone", "lobby"],
  ["the sound", "left"],
  ["the sound", "lobby"],
  ["sound that fails", "left"],
] as const)("stays out of a room that was left while %s was started at its rate: %s", async (what, phase) => {
  const studio = newStudio();
  await studio.join({ microphone: true });
  let go = (_: typeof microphone) => {};
  const until = new Promise<typeof microphone>((resolve) => {
    go = resolve;
  });
  if (what === "the microphone") askForMicrophone.mockReturnValueOnce(until);
  else
    startSound.mockImplementationOnce(async ({ quantum }) => {
      await until;
      if (what !== "the sound") throw new Error("no such rate");
      return Object.assign(sound, { quantum });
    });
  await serverSays({ ...welcomed, sample_rate_hz: 96_000, participants: [participant(2, "Ann")] });
  if (phase === "left") studio.leave();
  else studio.stopJoining();
  const before = startSound.mock.calls.length;
  go(microphone);
  await vi.advanceTimersByTimeAsync(0);
  expect(studio.state).toMatchObject({ phase, participants: [], problems: [] });
  expect(peers).toEqual([]);
  if (phase === "left") expect(startSound).toHaveBeenCalledTimes(before);
  else expect(startSound.mock.lastCall?.[0]).toMatchObject({ rateHz: 96_000 });
});

it("goes back to the lobby when it cannot do what the server says", async () => {
  const studio = newStudio();
  await enter(studio, [], { participants: null });
  expect(studio.state).toMatchObject({ phase: "lobby", signalling: "offline", problems: [{ id: "server" }] });
});

it("comes in as a listener when the microphone does not open at the room's rate", async () => {
  const studio = newStudio();
  await studio.enableMicrophone();
  askForMicrophone.mockRejectedValueOnce(new DOMException("no", "NotReadableError"));
  await enter(studio, [], { sample_rate_hz: 96_000 });
  expect(studio.state).toMatchObject({
    phase: "joined",
    microphone: "busy",
    problems: [{ id: "microphone" }],
  });
});

it.each(["the microphone", "the sound"])(
  "goes nowhere once one has left while %s is waited for",
  async (what) => {
    const studio = newStudio();
    let go = () => {};
    const until = new Promise<void>((resolve) => {
      go = resolve;
    });
    const closed = vi.spyOn(sound, "close");
    if (what === "the microphone")
      askForMicrophone.mockImplementationOnce(() => until.then(() => microphone));
    else
      startSound.mockImplementationOnce(({ quantum }) => until.then(() => Object.assign(sound, { quantum })));
    const joining = studio.join({ microphone: what === "the microphone" });
    await vi.advanceTimersByTimeAsync(0);
    studio.leave();
    go();
    await joining;
    expect(studio.state).toMatchObject({ phase: "left", microphone: "unasked", problems: [] });
    expect(Socket.last).toBeNull();
    expect(startSound).toHaveBeenCalledTimes(closed.mock.calls.length);
    closed.mockClear();

    await studio.rejoin();
    expect(Socket.last).not.toBeNull();
    expect(closed).not.toHaveBeenCalled();
  },
);

it("takes a microphone that was gone when one left, once one is back", async () => {
  const studio = newStudio();
  await enter(studio, []);
  await studio.enableMicrophone();
  await plug([], ["speakers"]);
  await plug(["another"], ["speakers"]);
  expect(studio.state.microphone).toBe("ended");
  studio.leave();
  await plug(["usb in"], ["speakers"]);
  await studio.rejoin();
  expect(studio.state.microphone).toBe("on");
});

it("warns of the next Bluetooth device, though the warning of one was dismissed", async () => {
  const studio = newStudio();
  const open = async (label: string, inputDeviceId: string) => {
    track.label = label;
    trackSettings.deviceId = inputDeviceId;
    await studio.change({ inputDeviceId });
    await studio.enableMicrophone();
    return studio.state.problems.map(({ id }) => id);
  };
  try {
    expect(await open("AirPods", "a")).toEqual(["input-bluetooth"]);
    studio.dismiss("input-bluetooth");
    expect(await open("AirPods", "a")).toEqual([]);
    expect(await open("USB", "b")).toEqual([]);
    expect(await open("AirPods Max", "c")).toEqual(["input-bluetooth"]);
  } finally {
    Object.assign(track, { label: "Microphone" });
    trackSettings.deviceId = "usb in";
  }
});

it("keeps a loop-back of the system's default for what that stood for", async () => {
  keepStorage();
  const calibration = { excessMs: 3, spreadMs: 0.2, roundTripMs: 40, atMs: 1 };
  const studio = newStudio();
  await plug(["usb in"], ["default"]);
  await studio.enableMicrophone();
  const { quantum } = studio.state.settings;
  const setup = { input: "Microphone", output: "default", rateHz: 48_000, quantum, capturePath: "none" };
  storeCalibration(setup, calibration);
  await studio.enableMicrophone();
  expect(studio.state.calibration).toMatchObject({ phase: "done", roundTripMs: 40 });
  track.label = "Built in";
  try {
    await studio.enableMicrophone();
    expect(studio.state.calibration.phase).toBe("none");
  } finally {
    track.label = "Microphone";
  }
});

it("knows a loop-back by the output that plays, not by a chosen one that is not there", async () => {
  keepStorage();
  const { settings, automation } = loadSettings("?outputDeviceId=usb+out");
  const { quantum } = settings;
  const setup = { input: "Microphone", output: "usb out", rateHz: 48_000, quantum, capturePath: "none" };
  storeCalibration(setup, { excessMs: 3, spreadMs: 0.2, roundTripMs: 40, atMs: 1 });
  const studio = new Studio("room", settings, automation);
  plugged.mockResolvedValue([{ kind: "audiooutput", deviceId: "usb out", label: "" }]);
  await studio.enableMicrophone();
  expect(studio.state.calibration.phase).toBe("done");
  await plug([], ["built in"]);
  expect(studio.state.calibration.phase).toBe("none");
  studio.forgetCalibration();
  await vi.advanceTimersByTimeAsync(6_000);
  await plug([], ["built in", "usb out"]);
  expect(studio.state.calibration.phase).toBe("done");
  // The browser falls back by itself, with the same devices there.
  sound.context.sinkId = "";
  await plug([], ["built in", "usb out"]);
  expect(studio.state.calibration.phase).toBe("none");
});

it("uses no loop-back of one rate in a room of another", async () => {
  keepStorage();
  const studio = newStudio();
  const { quantum } = studio.state.settings;
  const setup = { input: "Microphone", output: "", quantum, capturePath: "none" };
  for (const [rateHz, roundTripMs] of [
    [48_000, 40],
    [96_000, 30],
  ] as const)
    storeCalibration({ ...setup, rateHz }, { excessMs: 3, spreadMs: 0.2, roundTripMs, atMs: 1 });
  await studio.enableMicrophone();
  expect(studio.state.calibration.roundTripMs).toBe(40);
  await enter(studio, [], { sample_rate_hz: 96_000 });
  expect(studio.state.calibration.roundTripMs).toBe(30);
});

it("does not wait for a microphone that nobody allows", async () => {
  const studio = newStudio();
  askForMicrophone.mockReturnValueOnce(new Promise(() => {}));
  void studio.join({ microphone: true });
  await vi.advanceTimersByTimeAsync(0);
  studio.stopJoining();
  expect(studio.state.phase).toBe("lobby");
});

it("opens a microphone again at the room's rate that did not go with the one before", async () => {
  const studio = newStudio();
  vi.stubGlobal(
    "AudioContext",
    class {
      sampleRate = 44_100;
      async close() {}
    },
  );
  sound.capture.mockImplementationOnce(() => {
    throw new DOMException("different sample-rate", "NotSupportedError");
  });
  await studio.enableMicrophone();
  await enter(studio, [], { sample_rate_hz: 44_100 });
  expect(studio.state).toMatchObject({ phase: "joined", microphone: "on", problems: [] });
});

it("does without an ICE server that the browser refuses, and says so", async () => {
  vi.stubGlobal(
    "RTCPeerConnection",
    class {
      constructor({ iceServers }: { iceServers: { urls: string[] }[] }) {
        if (iceServers[0]?.urls[0] === "stun://wrong") throw new SyntaxError("refused");
      }
      close(): void {}
    },
  );
  const studio = newStudio();
  const [wrong, right] = [{ urls: ["stun://wrong"] }, { urls: ["stun:right"] }];
  await enter(studio, [participant(2, "Ann")], { ice_servers: [wrong, right] });
  expect(studio.state.phase).toBe("joined");
  expect(peers).toMatchObject([{ iceServers: [right] }]);
  for (const end of [() => studio.leave(), () => refuse("passphrase")]) {
    expect(problems(studio)).toEqual(["ice"]);
    studio.dismiss("ice");
    await end();
    await enter(studio, [], { ice_servers: [wrong] });
    expect(problems(studio), "of another time in a room").toEqual(["ice"]);
    await end();
    expect(problems(studio)).toEqual([]);
    await enter(studio, [], { ice_servers: [wrong] });
  }
});

it.each(["asking", "busy", "ended"])(
  "opens another microphone that is chosen while one is %s",
  async (state) => {
    const studio = newStudio();
    if (state === "busy") askForMicrophone.mockRejectedValueOnce(new DOMException("no", "NotReadableError"));
    const enabled = studio.enableMicrophone();
    if (state !== "asking") await enabled;
    if (state === "ended") await plug(["built in"], []);
    expect(studio.state.microphone).toBe(state);
    track.getSettings.mockReturnValue({ ...trackSettings, deviceId: "built in" });
    await studio.change({ inputDeviceId: "built in" });
    await enabled;
    track.getSettings.mockReturnValue(trackSettings);
    expect(studio.state.microphone).toBe("on");
    expect(askForMicrophone).toHaveBeenLastCalledWith({
      audio: expect.objectContaining({ deviceId: { exact: "built in" } }),
    });
  },
);

it.each<[string, (studio: Studio) => unknown]>([
  ["another input", (studio) => studio.change({ inputDeviceId: "built in" })],
  ["mono", (studio) => studio.change({ channels: 1 })],
  ["another rate", () => serverSays({ ...welcomed, sample_rate_hz: 96_000, participants: [] })],
])("shows a microphone as on while it is opened for %s, unless the browser asks", async (what, open) => {
  const studio = newStudio();
  await studio.enableMicrophone();
  if (what === "another rate") await studio.join();
  const seen = new Set<string>();
  studio.subscribe(() => seen.add(studio.state.microphone));
  let allow = (_: typeof microphone) => {};
  askForMicrophone.mockReturnValueOnce(
    new Promise((resolve) => {
      allow = resolve;
    }),
  );
  void open(studio);
  await vi.advanceTimersByTimeAsync(1_000);
  expect([...seen]).toEqual(["on"]);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(studio.state.microphone, "it asks").toBe("asking");
  allow(microphone);
  await vi.advanceTimersByTimeAsync(0);
  expect(studio.state.microphone).toBe("on");
  expect(askForMicrophone).toHaveBeenCalledTimes(2);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(studio.state.microphone).toBe("on");

  askForMicrophone.mockRejectedValueOnce(new DOMException("no", "NotReadableError"));
  await studio.change({ inputDeviceId: "another" });
  expect(studio.state.microphone).toBe("busy");
  studio.leave();
  expect(studio.state.microphone).toBe("unasked");
});

it("opens a microphone again when one is back that left while it was opened for mono", async () => {
  const studio = newStudio();
  await studio.join({ microphone: true });
  askForMicrophone.mockReturnValueOnce(new Promise(() => {}));
  void studio.change({ channels: 1 });
  studio.leave();
  await vi.advanceTimersByTimeAsync(5_000);
  expect(studio.state.microphone).toBe("unasked");
  await studio.rejoin();
  expect(studio.state.microphone).toBe("on");
});

/** The next sound starts when what this returns is called. */
function holdSound(): () => void {
  let start = () => {};
  const held = new Promise<void>((resolve) => {
    start = resolve;
  });
  startSound.mockImplementationOnce(({ quantum }) => held.then(() => Object.assign(sound, { quantum })));
  return start;
}

it("takes the quantum and the output that are chosen while the sound is started", async () => {
  const studio = newStudio();
  const start = holdSound();
  const enabled = studio.enableMicrophone();
  await vi.advanceTimersByTimeAsync(0);
  const changed = [studio.change({ outputDeviceId: "usb out" })];
  for (const quantum of [128, 256] as const) changed.push(studio.change({ quantum }));
  start();
  await Promise.all([enabled, ...changed]);
  expect(sound.setOutput).toHaveBeenCalledWith("usb out");
  expect(startSound.mock.lastCall?.[0]).toMatchObject({ quantum: 256, outputDeviceId: "usb out" });
  expect(startSound).toHaveBeenCalledTimes(2);
});

it("sends as was chosen while the sound is started", async () => {
  const studio = newStudio();
  const start = holdSound();
  const enabled = studio.enableMicrophone();
  await vi.advanceTimersByTimeAsync(0);
  await studio.change({ bits: 24, packet: 64, copies: "on", adapt: "off", lanes: 4 });
  start();
  await enabled;
  const sent = { bits: 24, packetFrames: 64, copies: "on", adapts: false, addsLanes: false };
  expect(sound.configureSender).toHaveBeenLastCalledWith(expect.objectContaining(sent));
});

it("takes the quantum that is chosen before the server has let one in, and makes lanes only then", async () => {
  const studio = newStudio();
  await studio.join();
  let close = () => {};
  vi.spyOn(sound, "close").mockReturnValueOnce(
    new Promise<void>((resolve) => {
      close = resolve;
    }),
  );
  const changed = studio.change({ quantum: 256 });
  await serverSays({ ...welcomed, participants: [participant(2, "Ann")] });
  expect(peers).toEqual([]);
  close();
  await changed;
  await vi.advanceTimersByTimeAsync(0);
  expect(startSound.mock.lastCall?.[0]).toMatchObject({ quantum: 256 });
  expect(studio.state.phase).toBe("joined");
  expect(peers).toHaveLength(1);
  await studio.change({ quantum: 512 });
  expect(startSound).toHaveBeenCalledTimes(2);
});

it("goes back to the lobby when the sound does not start with the quantum chosen at the door", async () => {
  const studio = newStudio();
  await studio.join();
  startSound.mockRejectedValueOnce(new Error("no such quantum"));
  await studio.change({ quantum: 256 });
  expect(studio.state).toMatchObject({ phase: "lobby", problems: [{ id: "sound" }] });
});

it("says of code that did not come that it is not the loudspeaker's fault, and tries again when told to", async () => {
  const studio = newStudio();
  startSound.mockRejectedValueOnce(new NotLoaded("404"));
  await studio.join();
  expect(studio.state).toMatchObject({ phase: "lobby", problems: [{ id: "sound" }] });
  expect(studio.state.problems[0].remedy).toMatch(/try again.*404/);
  await studio.join();
  expect(studio.state).toMatchObject({ phase: "joining", problems: [] });
});

it("says again what may have been lost, when a peer is back or the server has resumed oneself", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Ann")]);
  const told = async () => {
    await vi.advanceTimersByTimeAsync(200);
    return Socket.last?.said.splice(0).map(({ type, data }) => (type === "signal" ? data : type));
  };
  expect(await told(), "what is so at first").toEqual([]);
  expect(retried).not.toHaveBeenCalled();
  const again = [
    { kind: "relayed", wanted: false },
    { kind: "direct", wanted: true },
  ];
  studio.setPin("id 2", "direct");
  expect(await told()).toEqual([again[0]]);
  for (const message of [
    { type: "back", id: "id 2" },
    { ...welcomed, resumed: true, participants: [participant(2, "Ann")] },
  ]) {
    retried.mockClear();
    await serverSays(message);
    expect(await told()).toEqual(again);
    expect(retried).toHaveBeenCalledTimes(1);
    expect(await told()).toEqual([]);
  }
});

it("forgets the numbers of a server that was restarted, before it takes those of the new one", async () => {
  const studio = newStudio();
  await enter(studio, [participant(1, "Ann"), participant(2, "Bob"), participant(3, "Ann")]);
  sound.setPeer.mockClear();
  const numbers = () => sound.setPeer.mock.calls.splice(0).map(([stream, number]) => [stream, number]);
  const back = (id: number, stream: number) => ({ ...participant(stream, "Ann"), id: `id ${id}` });
  await serverSays({ ...welcomed, resumed: true, participants: [1, 2, 3].map((n) => participant(n, "Ann")) });
  expect(numbers()).toEqual([]);
  await serverSays({ ...welcomed, participants: [back(3, 1)] });
  expect(numbers()).toEqual([
    [1, null],
    [2, null],
    [3, null],
    [3, 1],
  ]);
  expect(studio.state.participants.map(({ name, present }) => [name, present])).toEqual([
    ["Ann", false],
    ["Ann", false],
    ["Ann 1", true],
  ]);
  await vi.advanceTimersByTimeAsync(1_000);
  const told = Socket.last?.said.filter(({ type }) => type === "signal").map(({ to }) => to);
  expect(told, "who is not there is told nothing").toEqual([]);
  await serverSays({ type: "joined", participant: back(1, 3) });
  expect(numbers()).toEqual([[1, 3]]);
});

it("says again what happens again, though it was dismissed", async () => {
  const studio = newStudio();
  const welcome = { ...welcomed, participants: [] };
  await enter(studio, []);
  for (let n = 0; n < 2; n++) {
    await serverSays({ type: "locked", locked: true, passphrase: "byrd" });
    await serverSays(welcome);
    expect(problems(studio)).toEqual(["unlocked"]);
    studio.dismiss("unlocked");
    expect(problems(studio)).toEqual([]);
  }
});

it("puts no card above those who play while the server is gone: a line of the page says it", async () => {
  const studio = newStudio();
  await enter(studio, [participant(1, "Ann")]);
  Socket.last?.onclose?.();
  expect(studio.state).toMatchObject({ signalling: "connecting", problems: [] });
});

it("says once at the door why that stays closed, until somebody wants in again", async () => {
  let answer: Response | null = null;
  const look = vi.fn(async () => answer ?? Promise.reject(new Error("nobody there")));
  vi.stubGlobal("fetch", look);
  const studio = newStudio();
  const titles = () => studio.state.problems.map(({ title }) => title);
  const wait = async () => {
    Socket.last!.readyState = Socket.CLOSED;
    Socket.last!.onclose?.();
    await vi.advanceTimersByTimeAsync(10_000);
  };
  for (let n = 0; n < 2; n++) {
    answer = null;
    await studio.join();
    await wait();
    expect(titles()).toEqual([closedDoorWords.silent.title]);
    studio.dismiss("server-gone");
    const before = look.mock.calls.length;
    await wait();
    expect(look.mock.calls.length).toBeGreaterThan(before);
    expect(titles()).toEqual([]);
    answer = Response.json({});
    for (let refused = 0; refused < 3; refused++) await wait();
    expect(titles(), "another reason").toEqual([closedDoorWords.refuses.title]);
    studio.stopJoining();
  }
});

it("tells whoever is in the passphrase of the room, as it was said at the door or by the owner", async () => {
  const studio = newStudio();
  const passphrase = () => studio.state.roomPassphrase;
  await studio.join({ passphrase: " tallis " });
  Socket.last?.onopen?.();
  expect(Socket.last?.said).toMatchObject([{ type: "hello", passphrase: "tallis" }]);
  await serverSays({ ...welcomed, participants: [], locked: true });
  expect(passphrase()).toBe("tallis");
  studio.lock(" byrd\t");
  expect(Socket.last?.said).toContainEqual({ type: "lock", passphrase: "byrd" });
  await serverSays({ type: "locked", locked: true, passphrase: "byrd" });
  expect(passphrase()).toBe("byrd");
  studio.lock(null);
  expect(Socket.last?.said).toContainEqual({ type: "lock", passphrase: null });
  await serverSays({ type: "locked", locked: false, passphrase: null });
  expect(passphrase()).toBeNull();
});

it("says that a room is open which was locked before the server started anew", async () => {
  const studio = newStudio();
  const welcome = { ...welcomed, participants: [] };
  await enter(studio, []);
  const lock = (passphrase: string) => serverSays({ type: "locked", locked: true, passphrase });
  await lock("byrd");
  await serverSays({ ...welcome, resumed: true });
  expect(problems(studio), "its owner opened it").toEqual([]);
  await lock("tallis");
  await serverSays(welcome);
  expect(problems(studio)).toEqual(["unlocked"]);
  await lock("gibbons");
  expect(problems(studio)).toEqual([]);
  await serverSays(welcome);
  expect(problems(studio)).toEqual(["unlocked"]);
  studio.leave();
  await enter(studio, []);
  expect(problems(studio), "one finds it so").toEqual([]);
});

it("says whose the room is now that was one's own before the server started anew", async () => {
  const studio = newStudio();
  const welcome = { ...welcomed, participants: [participant(1, "Béla")] };
  await enter(studio, [participant(1, "Béla")], { owner: "id 1" });
  await serverSays({ ...welcome, owner: "id 1" });
  expect(problems(studio), "it was not one's own").toEqual([]);
  await serverSays({ type: "owner", id: "id 9" });
  for (const back of [{ type: "owner", id: "id 9" }, welcome]) {
    await serverSays({ ...welcome, owner: "id 1" });
    expect(studio.state.problems).toMatchObject([{ title: "Béla owns the room now, no longer you." }]);
    studio.dismiss("not-owner");
    await serverSays(back);
  }
  await serverSays({ ...welcome, owner: "id 1" });
  expect(problems(studio)).toEqual(["not-owner"]);
  await serverSays(welcome);
  expect(problems(studio)).toEqual([]);
  studio.leave();
  await enter(studio, [participant(1, "Béla")], { owner: "id 1" });
  expect(problems(studio), "one finds it so").toEqual([]);
});

it("says that what the owner wanted did not reach the server", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Ann")]);
  const socket = Socket.last!;
  for (const order of [() => studio.moderate("id 2", "mute"), () => studio.lock("x")]) {
    socket.readyState = Socket.CLOSING;
    expect(order()).toBe(false);
    expect(problems(studio)).toEqual(["not-ordered"]);
    studio.dismiss("not-ordered");
    order();
    expect(problems(studio)).toEqual(["not-ordered"]);
    const shown: number[] = [];
    const unsubscribe = studio.subscribe(() => shown.push(problems(studio).length));
    order();
    expect(shown, "said anew").toEqual([0, 1]);
    unsubscribe();
    socket.readyState = Socket.OPEN;
    expect(order()).toBe(true);
    expect(problems(studio)).toEqual([]);
    socket.readyState = Socket.CLOSING;
    order();
    await serverSays({ ...welcomed, resumed: true, participants: [participant(2, "Ann")] });
    expect(problems(studio), "the server is back").toEqual([]);
  }
});

it("tells whether a removal got to the server", async () => {
  const studio = newStudio();
  await enter(studio, [participant(2, "Ann")]);
  expect(studio.moderate("id 2", "remove")).toBe(true);
  Socket.last!.readyState = Socket.CLOSING;
  expect(studio.moderate("id 2", "remove")).toBe(false);
  studio.leave();
  expect(studio.moderate("id 2", "remove")).toBe(false);
});

it("starts sound that the browser holds back by any click", async () => {
  sound.context.state = "suspended";
  const studio = newStudio();
  await studio.join();
  expect(problems(studio)).toEqual([]);
  await vi.advanceTimersByTimeAsync(1_500);
  expect(problems(studio)).toEqual(["suspended"]);
  expect(studio.state.heldBack).toBe(true);
  for (const gesture of ["click", "keydown"]) {
    sound.context.resume.mockClear();
    gestures.get(gesture)?.();
    expect(sound.context.resume).toHaveBeenCalledTimes(1);
  }
  sound.context.state = "running";
  gestures.get("click")?.();
  expect(sound.context.resume).toHaveBeenCalledTimes(1);
});

it("asks for sound that something else has taken when told to, not by itself", async () => {
  const studio = newStudio();
  await studio.join();
  Object.assign(sound.context, { state: "interrupted" });
  sound.context.resume.mockClear();
  (sound.context as { onstatechange?: () => void }).onstatechange?.();
  for (const gesture of ["click", "keydown"]) gestures.get(gesture)?.();
  await vi.advanceTimersByTimeAsync(1_500);
  expect(sound.context.resume).not.toHaveBeenCalled();
  const [{ title, action }] = studio.state.problems;
  expect(title).toBe("Something else on this device has taken the sound.");
  sound.context.resume.mockRejectedValueOnce(new Error("not yet"));
  action?.run();
  expect(sound.context.resume).toHaveBeenCalledTimes(1);
  sound.context.state = "running";
  (sound.context as { onstatechange?: () => void }).onstatechange?.();
  expect(problems(studio)).toEqual([]);
});

it("says of sound whose output has failed that, and not that it waits for a click, until it has run again", async () => {
  const context = sound.context as { state: string; onstatechange?: () => void };
  const studio = newStudio();
  const heldBack = async () => {
    context.state = "suspended";
    context.onstatechange?.();
    await vi.advanceTimersByTimeAsync(1_500);
    return studio.state.problems.find(({ id }) => id === "suspended")?.title;
  };
  await studio.join();
  await failOutput();
  expect(await heldBack()).toBe("The output could not be used: there is no sound.");
  context.state = "running";
  context.onstatechange?.();
  await vi.advanceTimersByTimeAsync(100);
  expect(await heldBack()).toBe("The browser has not started the sound.");
  context.state = "running";
});

it.each([
  ["the audio graph", {}, true],
  ["the audio graph", { state: "suspended" }, false],
  ["the audio graph", { audio: true }, false],
  ["the audio graph", { worker: true }, false],
  ["the track", { state: "suspended" }, true],
  ["the track", { audio: true }, true],
  ["the track", { worker: true }, false],
] as const)("knows whether one is heard who is captured by %s, with %o", async (by, what, isHeard) => {
  sound.capturesTrack = by === "the track";
  const { state, ...still } = { state: "running", audio: false, worker: false, ...what };
  sound.context.state = state;
  const studio = newStudio();
  await studio.enableMicrophone();
  expect(studio.state.captures, "at first").toBe(sound.capturesTrack || state === "running");
  await vi.advanceTimersByTimeAsync(1_500);
  await standStill(still);
  expect(whyUnheard(studio.state)).toBe(isHeard ? null : "The sound does not run: nobody hears you.");
  sound.context.state = "running";
  studio.leave();
  expect(studio.state.captures).toBe(false);
  sound.capturesTrack = false;
});

it("joins anew when the browser brings the page back as it was", async () => {
  const studio = newStudio();
  await enter(studio, [participant(1, "Ann")]);
  const before = Socket.last;
  gestures.get("pagehide")?.({});
  gestures.get("pageshow")?.({ persisted: false });
  expect(Socket.last).toBe(before);
  gestures.get("pageshow")?.({ persisted: true });
  await vi.advanceTimersByTimeAsync(0);
  expect(Socket.last).not.toBe(before);
  expect(studio.state.phase).toBe("joining");
});

it("says that the browser has muted the microphone, as long as it has", async () => {
  const muted: { muted: boolean; onmute?: () => void; onunmute?: () => void } = Object.assign(track, {
    muted: true,
  });
  const studio = newStudio();
  await studio.enableMicrophone();
  expect(problems(studio)).toContain("input-muted");
  studio.dismiss("input-muted");
  expect(studio.state.inputMuted).toBe(true);
  muted.muted = false;
  muted.onunmute?.();
  expect(studio.state.inputMuted).toBe(false);
});

it.each([
  ["Ann\tSmith", "Ann Smith"],
  [" Ann \u0085\n Smith ", "Ann Smith"],
  ["\u{1f3bb}".repeat(65), "\u{1f3bb}".repeat(64)],
  ["Ann\ud83c", "Ann"],
  ["\u202eAnn\u200b \u2066Lee\u3164", "Ann Lee"],
  ["Rene\u0301", "Ren\u00e9"],
  [
    "\u{1f469}\u{1f3fd}\u200d\u{1f3a4} Ann\u200d \u2764\ufe0f",
    "\u{1f469}\u{1f3fd}\u200d\u{1f3a4} Ann \u2764\ufe0f",
  ],
  ["\u200b", /^Musician [1-9]\d$/],
  ["\t", /^Musician [1-9]\d$/],
])("makes of the name %j one that the server takes", async (typed, name) => {
  const expected = typeof name === "string" ? name : expect.stringMatching(name);
  const studio = newStudio();
  await studio.change({ name: typed });
  expect(studio.stats().name).toEqual(expected);
  const stored = JSON.stringify({ name: typed });
  vi.stubGlobal("localStorage", { getItem: () => stored, setItem: () => {} });
  expect(newStudio().stats().name).toEqual(expected);
});

it("gives who says no name one that stays, as the others see it", () => {
  const kept = new Map<string, string>();
  const storage = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
  };
  vi.stubGlobal("localStorage", storage);
  const { name } = loadSettings("").settings;
  expect(name).toMatch(/^Musician [1-9]\d$/);
  expect(loadSettings("").settings.name).toBe(name);
  expect(loadSettings("?name=Ann").settings.name).toBe("Ann");
  expect(loadSettings("").settings.name).toBe(name);
});

const CHROME = "Mozilla/5.0 (X11; Linux x86_64) Chrome/156.0.0.0 Safari/537.36";
const FIREFOX = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/153.0";
const ANDROID = "Mozilla/5.0 (Android 16; Mobile) Gecko/153.0 Firefox/153.0";

it.each([
  [CHROME, 0.02, "Less delay is possible on this computer."],
  [CHROME, 0.005, null],
  // Who only listens.
  [CHROME, null, "Less delay may be possible on this computer."],
  [FIREFOX, undefined, "Less delay may be possible on this computer."],
  [FIREFOX, null, "Less delay may be possible on this computer."],
  [ANDROID, undefined, null],
])("advises a start with short buffers, for %s with an input of %j s", async (userAgent, latency, title) => {
  Object.assign(navigator, { userAgent });
  track.getSettings.mockReturnValue(latency ? { ...trackSettings, latency } : trackSettings);
  const studio = newStudio();
  if (latency !== null) await studio.enableMicrophone();
  expect(problems(studio)).toEqual(title === null || latency === null ? [] : ["launcher"]);
  await enter(studio, []);
  track.getSettings.mockReturnValue(trackSettings);
  expect(studio.state.problems.map(({ title }) => title)).toEqual(title === null ? [] : [title]);
});

it("advises once for good: not again once that was dismissed, also by a page that is loaded anew", async () => {
  Object.assign(navigator, { userAgent: FIREFOX });
  keepStorage();
  for (const shown of [["launcher"], []]) {
    const studio = newStudio();
    await studio.enableMicrophone();
    expect(problems(studio)).toEqual(shown);
    studio.dismiss("launcher");
    await enter(studio, []);
    expect(problems(studio)).toEqual([]);
  }
});

it("warns again of what was dismissed, by a page that is loaded anew", async () => {
  keepStorage();
  for (let n = 0; n < 2; n++) {
    const studio = newStudio();
    await enter(studio, []);
    await serverSays({ type: "locked", locked: true, passphrase: "byrd" });
    await serverSays({ ...welcomed, participants: [] });
    expect(problems(studio)).toEqual(["unlocked"]);
    studio.dismiss("unlocked");
  }
});

it("advises no other start to a browser that was started so, not even later in its profile", async () => {
  Object.assign(navigator, { userAgent: FIREFOX });
  keepStorage();
  const replaceState = vi.fn();
  vi.stubGlobal("history", { replaceState });
  Object.assign(location, { hash: "#launched", pathname: "/r/room", search: "?name=Ann" });
  for (const hash of ["#launched", ""]) {
    Object.assign(location, { hash });
    const studio = newStudio();
    await studio.enableMicrophone();
    expect(studio.state.problems).toEqual([]);
  }
  expect(replaceState).toHaveBeenCalledExactlyOnceWith(null, "", "/r/room?name=Ann");
});
