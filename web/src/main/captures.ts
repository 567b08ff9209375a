import type { CaptureTime } from "../shared/messages";
import { epochMs } from "./clock";
import { microphonePermission } from "./devices";

/** Where taking turns was tried. Elsewhere blocks are those of the sound system itself, and Android's is another matter. */
const takesTurns = () => /X11; Linux/.test(navigator.userAgent);
/** From here until the browser is asked: the new frame needs some of it. */
const AHEAD_MS = 50;

interface Opened {
  id: number;
  askedMs: number;
  track: MediaStreamTrack;
}

/**
 * Further captures of a microphone, for the worker to take in turns (docs/adr: captures in turns). Each belongs to an empty frame of its
 * own: within one frame Chromium gives everyone who asks for a device the same capture.
 */
export class Captures {
  #lastId = 0;
  /** By capture, also those that the browser has not given yet. */
  readonly #ends = new Map<number, () => void>();

  /** One more capture of what `track` captures; null if there is none to be had, or if none is wanted any more by then. */
  async add(track: MediaStreamTrack, wanted: CaptureTime): Promise<Opened | null> {
    if (!takesTurns()) return null;
    const id = ++this.#lastId;
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.#ends.set(id, () => frame.remove());
    const opened = await this.#open(id, frame, track, wanted).catch(() => null);
    if (opened === null) this.end(id);
    return opened;
  }

  async #open(
    id: number,
    frame: HTMLIFrameElement,
    track: MediaStreamTrack,
    { atMs, everyMs }: CaptureTime,
  ): Promise<Opened | null> {
    // The musician is never asked for this.
    const { state } = await microphonePermission();
    if (state !== "granted") return null;
    const earlyMs = atMs === null ? 0 : (atMs - epochMs() - AHEAD_MS) % everyMs;
    await new Promise((resolve) => setTimeout(resolve, AHEAD_MS + ((earlyMs + everyMs) % everyMs)));
    if (!this.#ends.has(id)) return null;
    const { deviceId } = track.getSettings();
    const audio = { ...track.getConstraints(), ...(deviceId && { deviceId: { exact: deviceId } }) };
    const askedMs = epochMs();
    const stream = await frame.contentWindow!.navigator.mediaDevices.getUserMedia({ audio });
    const [another] = stream.getAudioTracks();
    if (another === undefined || !this.#ends.has(id)) {
      another?.stop();
      return null;
    }
    this.#ends.set(id, () => {
      another.stop();
      frame.remove();
    });
    return { id, askedMs, track: another };
  }

  end(id: number): void {
    this.#ends.get(id)?.();
    this.#ends.delete(id);
  }

  endAll(): void {
    for (const id of [...this.#ends.keys()]) this.end(id);
  }
}
