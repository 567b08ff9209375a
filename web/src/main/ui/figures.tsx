/** A peer's numbers: what they are now, and how each was measured. */

import {
  type Accessor,
  createMemo,
  createSignal,
  createUniqueId,
  For,
  Index,
  type JSX,
  Show,
} from "solid-js";
import { RecentCounts } from "../../shared/clock";
import type { WayName } from "../../shared/messages";
import type { HeardStats, MouthToEar, PeerStats, RelayStats, Stats, StreamStats } from "../../shared/stats";
import { type Bar, delayFigure, delayNote, distanceWords, loopBackNote, settled, waterfall } from "./delay";
import { AUDIBLE_SHARE, diagnose, diagnoseMix, heardWords, isHeard } from "./diagnosis";
import {
  formatCount,
  formatMs,
  formatName,
  formatRate,
  formatShare,
  framesToMs,
  msFigure,
  plural,
  sentWords,
  THIN,
  UNKNOWN,
} from "./format";
import { type RecentStream, RecentWindow, type Verdict, verdict } from "./recent";
import { peerOf, useView } from "./view";

interface Figure {
  label: string;
  value: string;
  note: string;
  explanation: string;
}

/** What a strip shows at a glance; the others wait below. */
const KEY_FIGURES = ["Delay", "Buffer", "Filled in"];

/**
 * @param props.from how the sentence about distance calls them
 * @param props.isSilenced by the owner: what is missing then is not judged
 * @param props.brief of many: all but the verdict waits, too
 * @param props.children choices beside the figures that wait
 */
export function PeerFigures(props: {
  id: string;
  name: string;
  from: "them" | "yourself";
  isSilenced: boolean;
  brief: boolean;
  children: JSX.Element;
}) {
  const view = useView();
  const reading = createMemo(() => {
    const stats = view.stats();
    const peer = peerOf(stats, props.id);
    return stats && peer ? { stats, peer } : null;
  });
  const recent = createRecent(reading, () => props.isSilenced);
  const isMixed = createMemo(() => reading()?.peer.path === "mix");
  const summary = createMemo<Verdict>(() => {
    const { tone, text } = verdict(
      withMixer(recent(), reading()?.peer.hearing ?? null),
      reading()?.peer.captures ?? null,
    );
    return { tone, text: isMixed() ? `${text}, in the server's mix` : text };
  });
  const delay = createMemo(() => settled(reading()?.peer.mouthToEar ?? null));
  const distance = createMemo(() => {
    const now = reading();
    const estimateMs = estimatedDelayMs(now?.stats ?? null, now?.peer ?? null, recent());
    return distanceWords(props.from, delay(), estimateMs);
  });
  const incoming = createMemo(() => {
    const now = reading();
    return now && diagnoseIncoming(now.stats, now.peer, props.name);
  });
  // Kept here: the delay may be unknown for a moment, and then its stages are shown anew.
  const [isOpen, setOpen] = createSignal(false);
  const ways = createRecentWays(reading);
  const figures = createMemo(() =>
    peerFigures(reading()?.peer ?? null, reading()?.stats ?? null, recent(), ways()).filter(
      // Of oneself there is one clock only, and what one sends oneself is said beside.
      ({ label }) => props.from === "them" || (label !== "Clocks" && label !== "They get"),
    ),
  );
  const isKey = ({ label }: Figure) => KEY_FIGURES.includes(label);
  const keyFigures = createMemo(() => figures().filter(isKey));
  const otherFigures = createMemo(() => figures().filter((figure) => !isKey(figure)));
  const moreId = createUniqueId();
  const AtAGlance = () => (
    <>
      <Show when={!props.isSilenced && incoming()}>
        {(found) => <Advice text={found().text} advice={found().advice} />}
      </Show>
      <Show when={props.from === "them" && isHeard(view.state())}>
        <HeardByThem reading={reading} name={props.name} />
      </Show>
      <Show when={distance()}>
        <p class="hint">{distance()}</p>
      </Show>
      <FigureGrid figures={keyFigures} />
    </>
  );
  return (
    <div class="figures">
      <Show when={!props.isSilenced}>
        <p class={`verdict ${summary().tone}`}>{summary().text}</p>
      </Show>
      <Show when={!props.brief}>
        <AtAGlance />
      </Show>
      <details class="disclosure">
        <summary aria-describedby={moreId}>Buffer, path and more</summary>
        <span class="visually-hidden" id={moreId}>
          for {props.name}
        </span>
        <div class="figures">
          <Show when={props.brief}>
            <AtAGlance />
          </Show>
          {props.children}
          <FigureGrid figures={otherFigures} />
          <Explanations figures={figures} about={props.name} />
          <Show when={delay()}>
            {(known) => <Waterfall delay={known()} about={props.name} isOpen={isOpen()} setOpen={setOpen} />}
          </Show>
        </div>
      </details>
    </div>
  );
}

type Reading = Accessor<{ stats: Stats; peer: PeerStats } | null>;

/** The stream in which a peer is heard: in the server's mix its own stands still, and tells nothing. */
function heardIn(stats: Stats | null, peer: PeerStats | null): StreamStats | null {
  return peer?.path === "mix" ? (stats?.mix ?? null) : peer;
}

/** Of all who are in the server's mix together. */
export function MixAdvice() {
  const view = useView();
  const found = createMemo(() => diagnoseMix(view.stats()?.peers.map(({ hearing }) => hearing) ?? []));
  return <Show when={found()}>{(known) => <Advice text={known().text} advice={known().advice} />}</Show>;
}

function Advice(props: { text: string; advice: string }) {
  return (
    <p class="hint">
      {props.text} {props.advice}
    </p>
  );
}

/** How they hear us, by their own report, and why, if it is badly. */
function HeardByThem(props: { reading: Reading; name: string }) {
  const lost = new LostHere();
  const lostHere = createMemo(() => {
    const now = props.reading();
    return now && lost.add(now.stats, now.peer);
  });
  const heard = createMemo(() => props.reading()?.peer.heard ?? null);
  const found = createMemo(() => {
    const now = props.reading();
    return now && diagnoseOutgoing(now.stats, now.peer, props.name, lostHere());
  });
  return (
    <>
      <Show when={heard()}>
        {(known) => (
          <p class="heard-by-them">
            {heardWords(props.name, known(), props.reading()?.stats.sampleRateHz ?? null)}
          </p>
        )}
      </Show>
      <Show when={found()}>{(known) => <Advice text={known().text} advice={known().advice} />}</Show>
    </>
  );
}

/** Over which time what this page itself loses is looked at: as long as a report's. */
const HERE_MS = 4_000;

/** What this page itself lost of what it sends a peer. */
export class LostHere {
  readonly #counts = new RecentCounts<{ overrun: number; dropped: number }>(HERE_MS);

  /** Null until there are two readings to compare, and after a silence between them (a hidden tab). */
  add({ timeMs, sender }: Stats, { droppedBacklog }: PeerStats): { overrun: number; dropped: number } | null {
    const totals = { overrun: sender.overrunFrames, dropped: droppedBacklog };
    const recent = this.#counts.add(timeMs, totals, ["overrun", "dropped"]);
    return recent && recent.periodMs <= 2 * HERE_MS ? recent.grown : null;
  }
}

function diagnoseIncoming(stats: Stats, { id, hearing, farEnd }: PeerStats, name: string) {
  // Whoever else is in the mix is heard through the same part of the way.
  const others = stats.peers.flatMap((peer) =>
    peer.id !== id && peer.hearing?.isMixed === false ? [peer.hearing] : [],
  );
  return (
    hearing &&
    diagnose({
      from: name,
      to: null,
      ...hearing,
      isMixBad: hearing.isMixed && diagnoseMix(stats.peers.map((peer) => peer.hearing)) !== null,
      overrunFrames: farEnd?.overrunFrames ?? 0,
      droppedPackets: farEnd?.droppedPackets ?? 0,
      othersHearSenderBadly: null,
      listenerHearsOthersBadly: hearing.isMixed ? null : allBad(others),
    })
  );
}

function diagnoseOutgoing(
  stats: Stats,
  { id, heard }: PeerStats,
  name: string,
  lost: { overrun: number; dropped: number } | null,
) {
  const others = stats.peers.flatMap((peer) => (peer.id !== id && peer.heard ? [peer.heard] : []));
  return (
    heard &&
    diagnose({
      from: null,
      to: name,
      ...heard,
      isMixBad: false,
      overrunFrames: lost?.overrun ?? 0,
      droppedPackets: lost?.dropped ?? 0,
      othersHearSenderBadly: allBad(others),
      listenerHearsOthersBadly: null,
    })
  );
}

function allBad(ways: readonly { concealedShare: number | null }[]): boolean | null {
  if (ways.length === 0) return null;
  return ways.every(({ concealedShare }) => (concealedShare ?? 0) >= AUDIBLE_SHARE);
}

/** Where the time goes, stage by stage. */
function Waterfall(props: {
  delay: MouthToEar;
  about: string;
  isOpen: boolean;
  setOpen: (isOpen: boolean) => void;
}) {
  const id = createUniqueId();
  return (
    <details
      class="disclosure"
      open={props.isOpen}
      onToggle={(event) => props.setOpen(event.currentTarget.open)}
    >
      <summary aria-describedby={id}>Where the time goes</summary>
      <span class="visually-hidden" id={id}>
        from {props.about} to you
      </span>
      <ol class="waterfall">
        <Index each={waterfall(props.delay)}>{(bar) => <WaterfallRow bar={bar()} />}</Index>
      </ol>
      <p class="hint">
        {delayFigure(props.delay)} {delayNote(props.delay)}, as far as the browsers' own words are true. Of
        the error, ± {formatMs(props.delay.offsetErrorMs)} is how well the two clocks are compared: the
        network may be faster one way than the other.
        <Show when={loopBackNote(props.delay)}>{(note) => <> {note()}</>}</Show>
      </p>
    </details>
  );
}

function WaterfallRow(props: { bar: Bar }) {
  return (
    <li>
      <span class="waterfall-label">{props.bar.label}</span>
      <span class="figure">{props.bar.value}</span>
      <span class="waterfall-track" aria-hidden="true">
        <span
          class={`waterfall-bar ${props.bar.source}`}
          style={{ left: `${props.bar.fromPercent}%`, width: `${props.bar.widthPercent}%` }}
        />
      </span>
      <span class="figure-note waterfall-note">{props.bar.note}</span>
    </li>
  );
}

/** One's own side: what this page sends, and what the browser says of itself. */
export function OwnFigures() {
  const view = useView();
  const figures = createMemo(() => ownFigures(view.stats()));
  return (
    <div class="figures">
      <FigureGrid figures={figures} />
      <Explanations figures={figures} about="your side" />
    </div>
  );
}

/** Rows are kept by their place: only the text in them changes. */
function createLabels(figures: Accessor<Figure[]>): Accessor<string[]> {
  return createMemo<string[]>((before) => {
    const now = figures().map(({ label }) => label);
    return before.join() === now.join() ? before : now;
  }, []);
}

function FigureGrid(props: { figures: Accessor<Figure[]> }) {
  const labels = createLabels(props.figures);
  return (
    <dl class="figure-grid">
      <For each={labels()}>
        {(label, i) => (
          <div>
            <dt>{label}</dt>
            <dd>
              <span class="figure">{props.figures()[i()]?.value}</span>
              <span class="figure-note">{props.figures()[i()]?.note}</span>
            </dd>
          </div>
        )}
      </For>
    </dl>
  );
}

function Explanations(props: { figures: Accessor<Figure[]>; about: string }) {
  const labels = createLabels(props.figures);
  const id = createUniqueId();
  return (
    <details class="disclosure">
      <summary aria-describedby={id}>What these numbers mean</summary>
      <span class="visually-hidden" id={id}>
        for {props.about}
      </span>
      <dl class="explanations">
        <For each={labels()}>
          {(label, i) => (
            <>
              <dt>{label}</dt>
              <dd>{props.figures()[i()]?.explanation}</dd>
            </>
          )}
        </For>
      </dl>
    </details>
  );
}

function createRecent(reading: Reading, isSilenced: () => boolean): Accessor<RecentStream | null> {
  let window = new RecentWindow();
  let wasMixed = false;
  return createMemo(() => {
    const now = reading();
    if (isSilenced()) {
      window = new RecentWindow();
      return null;
    }
    const stream = now && heardIn(now.stats, now.peer);
    const isMixed = now?.peer.path === "mix";
    // Two streams' counts do not compare.
    if (!stream || isMixed !== wasMixed) window = new RecentWindow();
    wasMixed = isMixed;
    return (
      now && stream && window.add(now.stats.timeMs, { ...stream, outputUnderruns: now.stats.outputUnderruns })
    );
  });
}

/** What the server's mixer made up of their sound was played here, too: by the mix's own counts it was not missing. */
function withMixer(recent: RecentStream | null, hearing: HeardStats | null): RecentStream | null {
  if (recent === null || hearing?.isMixed !== true || !hearing.concealedShare) return recent;
  const concealedShare = Math.max(recent.concealedShare ?? 0, hearing.concealedShare);
  return { ...recent, concealedShare, concealedFrames: Math.max(1, recent.concealedFrames) };
}

/** Of the last seconds, by each way: shares are 0 to 1, null where nothing was to be counted. */
type RecentWays = Record<WayName, { firstShare: number | null; lostShare: number | null }>;

function createRecentWays(reading: Reading): Accessor<RecentWays | null> {
  const firsts = new RecentCounts<{ direct: number; relayed: number }>(10_000);
  return createMemo(() => {
    const now = reading();
    if (now === null) return null;
    const { direct, relayed } = now.peer;
    const totals = { direct: direct?.firstPackets ?? 0, relayed: relayed?.firstPackets ?? 0 };
    const grown = firsts.add(now.stats.timeMs, totals, ["direct", "relayed"])?.grown;
    const all = grown ? grown.direct + grown.relayed : 0;
    const shares = (name: WayName) => ({
      firstShare: grown && all > 0 ? grown[name] / all : null,
      lostShare: now.peer[name]?.lostShare ?? null,
    });
    return { direct: shares("direct"), relayed: shares("relayed") };
  });
}

function wayNote(way: RecentWays[WayName] | null): string {
  const words: string[] = [];
  if (way?.firstShare != null) words.push(`${formatShare(way.firstShare)} first`);
  if (way?.lostShare != null) words.push(`${formatShare(way.lostShare)} lost`);
  return words.join(", ");
}

/** Round trip of the way by which a peer is heard: the other may be quicker, and not be taken for what it loses. */
function heardBy(peer: PeerStats | null): number | null {
  if (peer?.path === "direct") return peer.direct?.rttMs ?? null;
  if (peer?.path === "relay") return peer.relayed?.rttMs ?? null;
  return peer?.rttMs ?? null;
}

function estimatedDelayMs(
  stats: Stats | null,
  peer: PeerStats | null,
  recent: RecentStream | null,
): number | null {
  const bufferMs = framesToMs(recent?.fullestFrames ?? null, stats?.sampleRateHz ?? null);
  const rttMs = heardBy(peer);
  // How long the server waits for a stream before it mixes is not known here.
  return bufferMs === null || rttMs === null || peer?.path === "mix" ? null : bufferMs + rttMs / 2;
}

const OF_THEIR_SOUND = ["Delay", "Buffer", "Lost", "Late", "Filled in", "Clocks", "Format"];

export function peerFigures(
  peer: PeerStats | null,
  stats: Stats | null,
  recent: RecentStream | null,
  ways: RecentWays | null,
): Figure[] {
  const rateHz = stats?.sampleRateHz ?? null;
  const stream = heardIn(stats, peer);
  const ofMix = peer?.path === "mix" ? "of the mix" : "";
  const receiving = stream !== null && stream.receivedPackets > 0;
  const bufferMs = receiving ? framesToMs(stream.bufferFrames, rateHz) : null;
  const targetMs = receiving ? framesToMs(stream.targetFrames, rateHz) : null;
  const rttMs = peer?.rttMs ?? null;
  const measured = settled(peer?.mouthToEar ?? null);
  const estimateMs = estimatedDelayMs(stats, peer, recent);
  const open = peer?.lanes.filter((lane) => lane.state === "open") ?? [];
  const overSeconds = recent ? `in ${Math.round(recent.seconds)}${THIN}s` : "";
  const total = (count: number | undefined) => (receiving ? `${formatCount(count ?? null)} in all` : "");
  const concealedMs = recent ? framesToMs(recent.concealedFrames, rateHz) : null;
  const hearing = peer?.hearing?.isMixed ? peer.hearing : null;
  // Who only listens has none of these.
  const isNothing = ({ label, value }: Figure) =>
    !receiving && value === UNKNOWN && OF_THEIR_SOUND.includes(label);
  const figures = [
    measured
      ? {
          label: "Delay",
          value: delayFigure(measured),
          note: delayNote(measured),
          explanation:
            "Measured, from their microphone to your ear: the two browsers compare their clocks with small probes, and say when a sound was captured there and when it leaves here. What only a browser says is marked as its own word under “Where the time goes”; a loop-back in the lobby replaces that by a measurement.",
        }
      : {
          label: "Delay",
          value: formatMs(estimateMs),
          note: estimateMs === null ? "" : "estimate, without sound cards",
          explanation:
            "Estimated until it is measured, from them to you: half the round trip, plus the fullest the buffer was in the last 10 seconds. That takes both directions of the network as equally fast, and leaves out both sound cards, which add more.",
        },
    {
      label: "Round trip",
      value: formatMs(rttMs),
      note: rttMs === null ? "" : "there and back",
      explanation:
        "Measured: a small probe goes to their browser and back, directly and through the server; the fastest of the last answers counts.",
    },
    {
      label: "Direct",
      value: formatMs(peer?.direct?.rttMs ?? null),
      note: wayNote(ways?.direct ?? null),
      explanation:
        "The way from browser to browser: a probe's time there and back, how much of their sound came that way first in the last 10 seconds, and packets that never came that way in the last 4 seconds.",
    },
    {
      label: "By server",
      value: formatMs(peer?.relayed?.rttMs ?? null),
      note: wayNote(ways?.relayed ?? null),
      explanation:
        "The same of the way through the server: to their browser and back, both times by the server.",
    },
    {
      label: "Buffer",
      value: bufferMs === null && targetMs === null ? UNKNOWN : formatMs(bufferMs),
      note: targetMs === null ? "" : phrase(`aims at ${msFigure(targetMs)} ms`, ofMix),
      explanation:
        "Measured: sound of theirs that waits here now, counted in frames and divided by the sample rate. It aims at the second figure. A larger buffer forgives a worse network, and adds just that much delay.",
    },
    {
      label: "Lost",
      value: formatShare(recent?.lostShare ?? null),
      note:
        recent?.lostShare == null
          ? ""
          : phrase(
              `${formatCount(recent.lostPackets)} ${overSeconds}, ${total(stream?.lostPackets)}`,
              stream?.recoveredPackets ? `${formatCount(stream.recoveredPackets)} rescued by copies` : "",
            ),
      explanation:
        "Counted: packets of which nothing came, by the gaps in their numbers, as a share of all that should have come in the last 10 seconds. Of the rescued ones a copy came, in the packet after.",
    },
    {
      label: "Late",
      value: formatShare(recent?.lateShare ?? null),
      note:
        recent?.lateShare == null
          ? ""
          : `${formatCount(recent.latePackets)} ${overSeconds}, ${total(stream?.latePackets)}`,
      explanation:
        "Counted: packets that came after their moment to be played had passed, as a share of the same.",
    },
    {
      label: "Filled in",
      value: formatShare((hearing ?? recent)?.concealedShare ?? null),
      note: hearing
        ? `by the server and here, in ${Math.round(hearing.periodMs / 1000)} s`
        : recent?.concealedShare == null
          ? ""
          : `${formatMs(concealedMs)} ${overSeconds}`,
      explanation:
        "Counted: time for which their sound was missing and something had to be played in its place, as a share of the last 10 seconds (4 in the server's mix, of which the server tells its part). What is played is carried on from the sound before: a short gap is hardly heard, many or long ones are.",
    },
    {
      label: "Clocks",
      value: driftFigure(ofMix ? null : peer),
      note: driftNote(ofMix ? null : peer),
      explanation:
        "Measured from when packets come: by how much their sound card runs faster than yours, in millionths, and how sure that is. If the clocks run apart, their sound is resampled by just that much, so that the buffer neither fills nor runs dry. Sound cards agree within 400: what is slower is a computer that loses sound before it is sent.",
    },
    {
      label: "Lanes",
      value: peer && peer.lanes.length > 0 ? `${open.length} of ${peer.lanes.length}` : UNKNOWN,
      note: open.length > 0 ? laneWords(open.map((lane) => lane.candidateType)) : "",
      explanation:
        "Parallel direct connections to this player: open ones of those set up. Direct means browser to browser; relayed means through a TURN server on the way, which costs some delay.",
    },
    {
      label: "Format",
      value: formatName(stream?.format ?? null, stream?.opusBps ?? null),
      note: stream && stream.channels !== null ? phrase(plural(stream.channels, "channel"), ofMix) : "",
      explanation:
        "Read from the packets, theirs or the mix's: uncompressed samples of this many bits, or Opus, which takes a tenth of the room for nearly the same sound and a few milliseconds more.",
    },
    {
      label: "They get",
      value: formatName(peer?.sent?.format ?? null, peer?.sent?.opusBps ?? null),
      note: sentWords(peer?.sent ?? null),
      explanation:
        "What you send to this player. If the way to them backs up, it steps down from what you chose, and up again once it stays clear. If they report lost packets, each carries a cheap copy of the one before, which is heard where that was lost (Opus packets are sent twice instead).",
    },
  ];
  return figures.filter((figure) => !isNothing(figure));
}

/** Notes that are there, after one another. */
function phrase(...notes: string[]): string {
  return notes.filter(Boolean).join(", ");
}

function serverNote(relay: RelayStats | null): string {
  const open = relay?.sessions.filter(({ state }) => state === "open").length ?? 0;
  if (relay === null || open === 0) return "carries no sound";
  const { missingShare, overRate, mixRefused } = relay;
  return phrase(
    `${plural(relay.wanted, "listener")} by it`,
    missingShare ? `${formatShare(missingShare)} lost on the way there` : "",
    overRate ? `${plural(overRate, "packet")} refused: send larger ones` : "",
    mixRefused ? "mixes enough already, so each comes as it is" : "",
  );
}

/** From here on the engine counts clocks as known: `KNOWN_PPM` in crates/core/src/player.rs. */
const KNOWN_PPM = 60;
/** Clocks of sound cards run apart by less. */
const MAX_CLOCK_PPM = 400;

/** Frame after frame, which none counts: the sender seems slower than any clock. */
function losesSound({ driftPpm, driftErrorPpm }: PeerStats): boolean {
  return (driftPpm ?? 0) + (driftErrorPpm ?? 0) < -MAX_CLOCK_PPM;
}

function driftFigure(peer: PeerStats | null): string {
  const ppm = peer?.driftPpm ?? null;
  const isKnown =
    peer !== null && (losesSound(peer) || (peer.driftErrorPpm ?? Number.POSITIVE_INFINITY) <= KNOWN_PPM);
  return ppm === null || !isKnown ? UNKNOWN : `${ppm < 0 ? "−" : "+"}${Math.abs(ppm).toFixed(0)} ppm`;
}

function driftNote(peer: PeerStats | null): string {
  if (peer === null || peer.driftErrorPpm === null) return "";
  const sureness = `± ${peer.driftErrorPpm.toFixed(0)}`;
  if (losesSound(peer)) return `${sureness}: sound is lost at their end`;
  if (peer.driftErrorPpm > KNOWN_PPM) return "being measured";
  return peer.isResampled ? `${sureness}, resampled` : `${sureness}, played as sent`;
}

function laneWords(types: readonly (string | null)[]): string {
  if (types.every((type) => type === null)) return "";
  const relayed = types.filter((type) => type === "relay").length;
  if (relayed === 0) return "direct";
  return relayed === types.length ? "relayed" : `${relayed} relayed`;
}

export function ownFigures(stats: Stats | null): Figure[] {
  const rateHz = stats?.sampleRateHz ?? null;
  const quantum = stats?.quantumFrames ?? null;
  const sending = stats !== null && stats.sender.capturePath !== "none";
  return [
    {
      label: "Output, reported",
      value: formatMs(stats?.reportedOutputLatencyMs ?? null),
      note: "by the browser",
      explanation:
        "Reported by the browser, not measured by us: how long sound takes from the page to your headphones. Some browsers leave parts of it out.",
    },
    {
      label: "Input, reported",
      value: formatMs(stats?.reportedInputLatencyMs ?? null),
      note: "by the browser",
      explanation:
        "Reported by the browser, not measured by us: how long sound takes from the microphone to the page.",
    },
    {
      label: "Packet",
      value: formatMs(stats ? framesToMs(stats.packetFrames, rateHz) : null),
      note: stats ? plural(stats.packetFrames, "frame") : "",
      explanation: "Sound that is collected before it is sent, from your settings and the sample rate.",
    },
    {
      label: "Block size",
      value: formatMs(framesToMs(quantum, rateHz)),
      note: quantum === null ? "" : plural(quantum, "frame"),
      explanation:
        "Read from the browser: sound it computes at a time. It may differ from what the settings ask for.",
    },
    {
      label: "You send",
      value: sending ? `${formatName(stats.format, stats.opusBps)}, ${formatRate(rateHz)}` : UNKNOWN,
      note: sending ? plural(stats.channels, "channel") : "",
      explanation:
        "What you chose. Uncompressed samples are exactly what your interface delivers. What each player gets is said with that player.",
    },
    {
      label: "Server",
      value: formatMs(stats?.relay?.rttMs ?? null),
      note: serverNote(stats?.relay ?? null),
      explanation:
        "Measured: a probe goes to the server and back on the connections that carry sound there. Listeners by the server are those who take your sound from it. What is lost on the way there the server counts, over 4 seconds.",
    },
    {
      label: "Not sent in time",
      value: sending ? formatMs(framesToMs(stats.sender.overrunFrames, rateHz)) : UNKNOWN,
      note: sending ? "since the sound began" : "",
      explanation: "Counted: sound of yours dropped in this computer because it was too busy to send it.",
    },
  ];
}
