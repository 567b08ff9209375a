import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { loadSettings } from "../../src/main/settings";
import { Studio } from "../../src/main/studio";

/** No more of the sound than coming in and leaving need. */
const sound = vi.hoisted(() => ({
  context: { state: "running" },
  setMuted: () => {},
  setRelay: () => {},
  holdRelay: () => {},
  capture: vi.fn(),
  close: async () => {},
}));
vi.mock("../../src/main/sound", () => ({
  BUDGET_SHARES: {},
  TELLS_OUTPUT: true,
  Sound: { start: async () => sound },
}));

/** Those to the server, which the test speaks for. */
class Socket {
  static readonly OPEN = 1;
  static last: Socket | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  constructor() {
    Socket.last = this;
  }
  close(): void {}
}

const askForMicrophone = vi.fn(async () => {
  const track = { label: "Microphone", stop: () => {}, getSettings: () => ({ sampleRate: 48_000 }) };
  return { getTracks: () => [track], getAudioTracks: () => [track] };
});

beforeEach(() => {
  vi.useFakeTimers();
  vi.clearAllMocks();
  Socket.last = null;
  vi.stubGlobal("WebSocket", Socket);
  vi.stubGlobal("AudioContext", class {});
  vi.stubGlobal("crossOriginIsolated", true);
  vi.stubGlobal("location", { protocol: "https:", host: "play.example", origin: "https://play.example" });
  vi.stubGlobal("addEventListener", () => {});
  vi.stubGlobal("removeEventListener", () => {});
  vi.stubGlobal("localStorage", { getItem: () => null, setItem: () => {} });
  vi.stubGlobal("navigator", {
    userAgent: "",
    mediaDevices: {
      addEventListener: () => {},
      enumerateDevices: async () => [],
      getUserMedia: askForMicrophone,
    },
  });
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function newStudio(): Studio {
  const { settings, automation } = loadSettings("");
  return new Studio("room", settings, automation);
}

/** The server says why it lets one go. */
async function refuse(code: string): Promise<void> {
  Socket.last?.onmessage?.({ data: JSON.stringify({ type: "error", code, message: "so it is" }) });
  await vi.advanceTimersByTimeAsync(0);
}

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

it("says once that the owner removed one", async () => {
  const studio = newStudio();
  await studio.join();
  await refuse("removed");
  expect(studio.state.phase).toBe("removed");
  const [{ title, remedy }, ...others] = studio.state.problems;
  expect(others).toEqual([]);
  expect(title).toBe("The room's owner removed you.");
  expect(remedy).not.toContain("so it is");
});

it("keeps no word of an earlier try above the room", async () => {
  const studio = newStudio();
  await studio.join();
  await refuse("room_full");
  expect(studio.state.problems).toMatchObject([{ id: "server", title: "The room is full." }]);
  await studio.rejoin();
  expect(studio.state.problems).toEqual([]);
});
