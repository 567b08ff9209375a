/** What is taken of each participant, from the server's relay and directly; and the mix, where that is what the relay sends. */

import { type Asked, COMMAND, type Mixing } from "../shared/engine";
import type { Listen } from "../shared/relay";
import { MIX_STREAM } from "../shared/wire";
import { HeardWindow } from "./heard";
import type { Member } from "./member";
import type { Members } from "./members";
import type { Buffer, Participant, Settings } from "./model";
import type { RunningSound } from "./running-sound";
import type { Sound } from "./sound";
import type { Store } from "./store";

/** Between two looks at the mix, while there is one. */
const MIX_LOOK_MS = 20;

/** The mix's stream, and what the engine was last told of it. */
interface MixStream {
  stream: number;
  isMuted: boolean;
  isSolo: boolean;
  window: HeardWindow;
}

/** Does what the worker has decided of the peers' ways. */
export class Taking {
  readonly #store: Store;
  readonly #sound: RunningSound;
  readonly #members: Members;
  #mix: MixStream | null = null;
  #mixObserver: ReturnType<typeof setInterval> | undefined;
  /** When it was last looked at who is heard in the mix. */
  #lookedMs = 0;
  /** What is taken from the relay, as it was last told, in JSON. */
  #listen = "";

  constructor(store: Store, sound: RunningSound, members: Members) {
    this.#store = store;
    this.#sound = sound;
    this.#members = members;
  }

  /** Null unless there is one. */
  get mix(): Readonly<MixStream> | null {
    return this.#mix;
  }

  setBuffer(buffer: Buffer): void {
    if (this.#mix !== null) this.#sound.current?.setBuffer(this.#mix.stream, buffer);
  }

  /** The sound has ended, and the mix with it. */
  end(): void {
    clearInterval(this.#mixObserver);
    this.#mix = null;
    this.#listen = "";
  }

  /** What is taken from the relay, and what of it is heard; to be called ten times a second. */
  follow(): void {
    const sound = this.#sound.current;
    if (sound === null) return;
    const { mixing } = sound;
    this.#review(sound);
    this.#keepMix(sound);
    const taken = this.#members.all.map((member) => this.#taken(member));
    const listen = listenOf(taken, mixing, this.#store.state.settings);
    const text = JSON.stringify(listen);
    if (text !== this.#listen) sound.setListen(listen);
    this.#listen = text;
    // After the relay: who is no longer to send directly shall find that the relay is asked.
    for (const member of this.#members.all) {
      this.#members.silence(member);
      if (member.number === null) continue;
      const relayed = takesRelayed(listen, member.number);
      this.#members.tellWanted(member, { relayed, direct: wantsDirect(this.#taken(member), mixing) });
    }
  }

  #review(sound: Sound): void {
    const numbers = sound.numbers();
    const played = (stream: number) => this.#sound.number(stream, numbers)("played") || 0;
    const elapsedMs = Math.trunc(performance.now() - this.#lookedMs);
    this.#lookedMs += elapsedMs;
    const seen = this.#members.all.map(({ stream }) => {
      const worker = this.#sound.worker.peer(stream);
      return {
        stream,
        isWanted: worker?.asked === "mixed" && worker.relayOpen,
        isForwarded: worker?.ways.relayed.isHeard === true,
        playedFrames: played(stream),
      };
    });
    const playedFrames = this.#mix === null ? 0 : played(this.#mix.stream);
    sound.mixing.review({ elapsedMs, playedFrames, settleMs: this.#settlesMs(numbers) }, seen);
  }

  /** From asking the relay for a change of the mix until it is heard. */
  #settlesMs(numbers: Float64Array): number {
    const bufferedFrames = (this.#mix && this.#sound.number(this.#mix.stream, numbers)("buffered")) || 0;
    return (this.#sound.worker.newest.relay?.rttMs ?? 0) + (bufferedFrames * 1000) / this.#sound.rateHz;
  }

  /** The mix has a stream of its own while it is needed. It is silent until it plays. */
  #keepMix(sound: Sound): void {
    const { isNeeded, isHeard } = sound.mixing;
    if (!isNeeded) {
      clearInterval(this.#mixObserver);
      if (this.#mix !== null) sound.removeStream(this.#mix.stream);
      this.#mix = null;
      return;
    }
    if (this.#mix === null) {
      const stream = this.#members.newStream();
      sound.addStream(stream, this.#store.state.settings.buffer, null);
      sound.setPeer(stream, MIX_STREAM, "auto", { direct: false, relayed: false });
      sound.command(COMMAND.mute, stream, 1);
      this.#mix = { stream, isMuted: true, isSolo: false, window: new HeardWindow() };
      this.#mixObserver = setInterval(() => this.follow(), MIX_LOOK_MS);
    }
    const mix = this.#mix;
    const isSolo = this.#members.all.some(
      (member) => this.#members.isMixed(member) && member.participant.solo,
    );
    if (mix.isMuted === isHeard) sound.command(COMMAND.mute, mix.stream, Number(!isHeard));
    if (mix.isSolo !== isSolo) sound.command(COMMAND.solo, mix.stream, Number(isSolo));
    Object.assign(mix, { isMuted: !isHeard, isSolo });
  }

  #taken({ number, participant, stream }: Member): Taken {
    const { asked = null, relayOpen: isReached = false } = this.#sound.worker.peer(stream) ?? {};
    return { number, participant, stream, asked, isReached };
  }
}

/** A participant, and what the worker says of it. */
export interface Taken {
  participant: Pick<Participant, "pin" | "gain" | "pan" | "muted" | "mutedByOwner" | "solo">;
  /** Its number in the room; null of the loop, and of one that the room does not know. */
  number: number | null;
  /** Its own stream. */
  stream: number;
  /** How its stream is to be taken from the relay; null before that is known. */
  asked: Asked | null;
  /** Whether the peer is heard of by the relay. */
  isReached: boolean;
}

/** What to ask the relay for. */
export function listenOf(all: Taken[], mixing: Mixing, settings: Pick<Settings, "bits" | "packet">): Listen {
  const members = withNumbers(all);
  const hasSolo = all.some(({ participant }) => participant.solo);
  const forward = members.flatMap(([number, { participant, stream, asked }]) => {
    const first = participant.pin === "direct" ? "nothing" : "forwarded";
    return (asked ?? first) !== "nothing" && mixing.needsOwn(stream) ? [number] : [];
  });
  const sources = members.flatMap(([number, { participant, stream }]) => {
    const { gain, pan, muted, mutedByOwner, solo } = participant;
    if (!mixing.isSource(stream)) return [];
    return [{ stream: number, gain, pan, muted: muted || mutedByOwner || (hasSolo && !solo) }];
  });
  const { bits, packet } = settings;
  const format = bits === 24 || bits === 32 ? 24 : 16;
  const opus = typeof AudioDecoder !== "undefined";
  return { forward, mix: sources.length === 0 ? null : { format, packet_frames: packet, sources }, opus };
}

function withNumbers(all: Taken[]): [number, Taken][] {
  return all.flatMap((taken) => (taken.number === null ? [] : [[taken.number, taken]]));
}

/** Whether a participant's stream is asked for there. */
export function takesRelayed({ forward, mix }: Listen, number: number): boolean {
  return forward.includes(number) || !!mix?.sources.some(({ stream }) => stream === number);
}

/**
 * Whether a participant shall send its stream directly: not where it is heard in the mix, or shall come by the server alone. The peer goes
 * on directly until the relay is there, and one that needs no relay itself opens a session only because of this: so it is said at once.
 */
export function wantsDirect(taken: Taken, mixing: Mixing): boolean {
  const { participant, stream, asked, isReached } = taken;
  const { pin } = participant;
  if (pin === "direct") return true;
  const isPinned = pin === "relay" || (pin === "mix" && (!isReached || mixing.isHeldUp(stream)));
  // The relay is asked first.
  const isAsked = asked !== null && asked !== "nothing";
  return !(isPinned && isAsked) && mixing.needsOwn(stream);
}
