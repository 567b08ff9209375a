import { share } from "../shared/heard";
import { type MixedSource, NOBODY, type RelayStatistics, type Wanted } from "../shared/relay";
import type { RelayStats } from "../shared/stats";
import type { Circumstances, Listener, Sending } from "./listener";
import { MAX_SESSIONS } from "./relay";
import { SAMPLES } from "./renditions";

/** Loss that copies are sent for, as the ladder has it... */
const LOSSY_SHARE = 0.005;
/** ...of so many seconds... */
const LOSS_SECONDS = 4;
/** ...and so many packets: a probe that is lost while little is sent is no reason. */
const LOSSY_PACKETS = 4;

/** The relay as one more peer, `RELAY_STREAM`: one datagram to it reaches all who listen there. Its lanes are sessions. */
export class RelayPeer {
  /** Null before the first session. */
  listener: Listener | null = null;
  /** Said by the relay: who take our stream there, and its statistics of the last seconds, oldest first. */
  wanted: Wanted = NOBODY;
  #saidLately: RelayStatistics[] = [];
  /** The newest that had been counted when paths were last reviewed. */
  #counted: RelayStatistics | null = null;
  /** Its open sessions at the last review, and since when there are so many. */
  #sessions = { count: 0, sinceMs: 0 };
  /** Datagrams too long to be ours, or of nobody we know. */
  refused = 0;

  get #said(): RelayStatistics | null {
    return this.#saidLately.at(-1) ?? null;
  }

  get isOpen(): boolean {
    return this.listener?.lanes.isOpen ?? false;
  }

  /** What the relay says of who takes our stream, and of how it fares; null while there is no session. */
  setSaid(wanted: Wanted, statistics: RelayStatistics | null): void {
    this.wanted = wanted;
    if (statistics === null) this.#saidLately = [];
    else if (statistics !== this.#said)
      this.#saidLately = [...this.#saidLately, statistics].slice(-1 - LOSS_SECONDS);
  }

  /** No Opus where somebody there has no use for it. */
  sendingOf(sending: Sending): Sending {
    if (this.wanted.opus) return sending;
    const [first = SAMPLES, ...others] = sending.rungs.filter(({ format }) => format !== "opus");
    return { ...sending, rungs: [first, ...others] };
  }

  /**
   * What it has sent us, and dropped, since the last call. It counts since we came into the room. With a session that has ended its word is gone
   * for a second, and a server that was restarted counts anew.
   */
  takeGrown(): { forwarded: number; aged: number } {
    const [before, now] = [this.#counted ?? this.#said, this.#said];
    this.#counted = now ?? before;
    const grown = (count: "forwarded" | "aged") => Math.max(0, (now?.[count] ?? 0) - (before?.[count] ?? 0));
    return { forwarded: grown("forwarded"), aged: grown("aged") };
  }

  /** A peer's part in our mix, by its number. */
  mixed(number: number | null): MixedSource | undefined {
    return this.#said?.mixed.find(({ stream }) => stream === number);
  }

  circumstances(sessions: number, isSentBothWays: boolean, nowMs: number): Circumstances {
    // Of fewer sessions or more it does not tell yet: these lose another share.
    if (sessions !== this.#sessions.count) this.#sessions = { count: sessions, sinceMs: nowMs };
    const isSettled = nowMs - this.#sessions.sinceMs > LOSS_SECONDS * 1000;
    return {
      isSentBothWays,
      lostShare: isSettled ? this.#lostShare : null,
      mostLanes: MAX_SESSIONS,
      isLossy: ((this.#lostShare ?? 0) > LOSSY_SHARE && !isSentBothWays) || this.#isLossyHere,
    };
  }

  /** Share of our datagrams of the last seconds that were lost on the way there; null while it does not say. */
  get #lostShare(): number | null {
    const { received, missing } = this.#said ?? { received: 0, missing: 0 };
    return share(missing, received + missing);
  }

  /** Whether copies would help on the way from it. */
  get #isLossyHere(): boolean {
    const [first, last] = [this.#saidLately[0], this.#said];
    if (first === undefined || last === null) return false;
    const [lost, forwarded] = [last.lost - first.lost, last.forwarded - first.forwarded];
    return lost >= LOSSY_PACKETS && lost > forwarded * LOSSY_SHARE;
  }

  /** Null before the first session. */
  stats(): RelayStats | null {
    if (this.listener === null) return null;
    const sessions = this.listener.lanes.stats();
    const rtts = sessions.flatMap(({ rttMs }) => (rttMs === null ? [] : [rttMs]));
    const said = this.#said;
    return {
      sessions,
      rttMs: rtts.length > 0 ? Math.min(...rtts) : null,
      wanted: this.wanted.listeners,
      sent: this.listener.stats(),
      droppedBacklog: this.listener.lanes.dropped,
      strayDatagrams: this.refused,
      forwarded: said?.forwarded ?? null,
      aged: said?.aged ?? null,
      overRate: said?.over_rate ?? null,
      lost: said?.lost ?? null,
      missingShare: this.#lostShare,
      mixMs: said?.mix_us == null ? null : said.mix_us / 1000,
      mixRefused: said?.mix_refused === true,
    };
  }
}
