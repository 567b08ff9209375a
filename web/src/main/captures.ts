/** Where taking turns was tried. Elsewhere blocks are those of the sound system itself, and Android's is another matter. */
const takesTurns = () => /X11; Linux/.test(navigator.userAgent);
/** From here until the browser is asked: the new frame needs some of it. */
const AHEAD_MS = 50;

/** On the clock of the worker's that is called so, but for the time between their starts. */
export const epochMs = () => performance.timeOrigin + performance.now();

/** When to ask the browser for a capture: at `atMs` or a multiple of `everyMs` later; null: at any time. */
export interface Wanted {
  atMs: number | null;
  everyMs: number;
}

/**
 * Further captures of a microphone, for the worker to take in turns (docs/adr: captures in turns). Each belongs to an empty frame of its
 * own: within one frame Chromium gives everyone who asks for a device the same capture.
 */
export class Captures {
  #lastId = 0;
  readonly #ends = new Map<number, () => void>();
  #generation = 0;
  #isRefused = false;

  /** One more capture of what `track` captures. Null if the browser refuses, or if none is wanted any more by then. */
  async add(
    track: MediaStreamTrack,
    { atMs, everyMs }: Wanted,
  ): Promise<{ id: number; askedMs: number; track: MediaStreamTrack } | null> {
    const generation = this.#generation;
    if (this.#isRefused || !takesTurns() || !(await isGranted())) return null;
    const { deviceId } = track.getSettings();
    const audio = { ...track.getConstraints(), ...(deviceId && { deviceId: { exact: deviceId } }) };
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const earlyMs = atMs === null ? 0 : (atMs - epochMs() - AHEAD_MS) % everyMs;
    await new Promise((resolve) => setTimeout(resolve, AHEAD_MS + ((earlyMs + everyMs) % everyMs)));
    const askedMs = epochMs();
    const devices = frame.contentWindow?.navigator.mediaDevices;
    const stream = await devices?.getUserMedia({ audio }).catch(() => undefined);
    const another = stream?.getAudioTracks()[0];
    const end = () => {
      another?.stop();
      frame.remove();
    };
    if (another === undefined || generation !== this.#generation) {
      this.#isRefused ||= another === undefined;
      end();
      return null;
    }
    const id = ++this.#lastId;
    this.#ends.set(id, end);
    return { id, askedMs, track: another };
  }

  end(id: number): void {
    this.#ends.get(id)?.();
    this.#ends.delete(id);
  }

  endAll(): void {
    this.#generation++;
    this.#isRefused = false;
    for (const id of [...this.#ends.keys()]) this.end(id);
  }
}

/** The musician is never asked for this. */
async function isGranted(): Promise<boolean> {
  const { state } = await navigator.permissions.query({ name: "microphone" });
  return state === "granted";
}
