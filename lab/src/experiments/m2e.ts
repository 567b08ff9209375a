import { type Hit, known, quantile, tones } from "../analysis.js";
import type { PageParameters } from "../antiphon.js";
import { choose, configs, rotated } from "../configs.js";
import type { Experiment, Outcome, Plan, Step } from "../experiment.js";
import type { CsvTable } from "../report/csv.js";
import type { Cell, Section, Table } from "../report/model.js";
import {
  type Budget,
  concealment,
  type Direction,
  type OwnLook,
  type SetupResult,
  setups,
} from "../setups.js";
import { framesPerMs, percent, raw, shown, shownMs } from "../units.js";

const parameters: PageParameters = {
  quantum: 64,
  packet: 128,
  buffer: "auto",
  lanes: 1,
  bits: 16,
  channels: 2,
};

/**
 * What Antiphon is to reach, medians of the same session: ratios, or ms above setup A. `looksOff`: share of the looks at the page's own figure that may be off; not of
 * Firefox, which does not tell all of its stages.
 */
const goals: Record<string, { toA?: number; aboveAMs?: number; toRtc?: number; looksOff?: number }> = {
  chromium: { toA: 0.7, toRtc: 0.5, looksOff: 0 },
  "chromium-128": { toA: 0.55, looksOff: 0 },
  firefox: { aboveAMs: 20 },
  "firefox-128": { aboveAMs: 20 },
};
const concealedGoal = 0.001;
/** What the way through the server may add, on the loopback. */
const relayedGoalMs = 1.5;

/** Half a minute after its start Chromium does what it had put off, and sound waits for it, setup A's too: what a listener hears once is not measured. */
export const startupSeconds = 30;
/** The automatic buffer remembers a disturbance for up to 28 s if it came twice (decision 16). */
export const forgetSeconds = 30;

/** Medians of the two halves of one measurement may differ by so much. */
const agreementMs = 3;

/** The page's own figure may be off by so much beyond the error that it states. */
const ownGoalMs = 1;
/** The page's figure is compared with the pulses so long before and after it. */
const aroundMs = 500;

/** Figures that the paper gives in words (its sections 4 and 5); the rest of it is in pictures. */
const published: { config: string; setup: string; label: string; ms: number }[] = [
  { config: "chromium", setup: "A", label: "paper: Chrome 98, macOS, about 30 ms", ms: 30 },
  { config: "firefox", setup: "A", label: "paper: Firefox 97, macOS, close to 15 ms", ms: 15 },
  { config: "firefox", setup: "C1", label: "paper: Firefox 97, macOS, as low as 40 ms", ms: 40 },
];

interface Measured {
  session: number;
  config: string;
  setup: string;
  result: SetupResult;
}

export const m2e: Experiment = {
  name: "m2e",
  title: "Mouth-to-ear latency",
  question:
    "How long does a sound take from A's microphone to B's speaker, browsers and operating system included, and where does the time go?",
  programs: [],
  plan(options): Plan<Measured> {
    const chosenConfigs = choose(options.configs, Object.keys(configs)).filter(
      (name) => options.configs !== undefined || !options.quick || name === "chromium-128",
    );
    const chosenSetups = choose(options.setups, Object.keys(setups)).filter(
      (name) => options.setups !== undefined || !options.quick || name === "A" || name === "Antiphon",
    );
    const sessions = options.sessions ?? (options.quick ? 1 : 3);
    const timing = options.quick
      ? { settleSeconds: 0.5, leadSeconds: 1.5, pulseSeconds: options.seconds ?? 3, steadySeconds: 1 }
      : {
          settleSeconds: 5,
          leadSeconds: startupSeconds + forgetSeconds,
          pulseSeconds: options.seconds ?? 20,
          steadySeconds: 5,
        };
    const { settleSeconds, leadSeconds, pulseSeconds, steadySeconds } = timing;
    const seconds = 8 + settleSeconds + leadSeconds + pulseSeconds + steadySeconds;

    const steps: Step<Measured>[] = [];
    for (let session = 1; session <= sessions; session++) {
      for (const config of chosenConfigs) {
        for (const setup of rotated(chosenSetups, session, sessions)) {
          steps.push({
            label: `session ${session}, ${config}, ${setup}`,
            seconds,
            run: async ({ rig, pages, product }) => {
              const browser = configs[config]!;
              // As setups of two pages are heard at both.
              const card = session % 2 === 1 ? "A" : "B";
              const stage = { rig, pages, product, browser, parameters, card, ...timing } as const;
              const result = await setups[setup]!(stage);
              const words = result.directions
                .map((direction) => {
                  const { name, hearing } = direction;
                  const ms = shownMs(quantile(latenciesMs(hearing.hits), 0.5));
                  const own = summarise(direction);
                  const page = own && `, its page says ${ownWords(own.middle)}`;
                  return `${name} ${ms ?? "–"}${page ?? ""}${hearing.missed > 0 ? `, ${hearing.missed} of ${hearing.hits.length} pulses missed` : ""}`;
                })
                .join(" · ");
              const { summary: device, troubles } = result;
              return { measured: { session, config, setup, result }, words, device, troubles };
            },
          });
        }
      }
    }
    const planned = { quick: options.quick, sessions, configs: chosenConfigs, setups: chosenSetups };
    return { steps, conclude: (measured) => conclude(measured, timing, planned) };
  },
};

/** What was to be measured, whether or not it was. */
interface Planned {
  quick: boolean;
  sessions: number;
  configs: readonly string[];
  setups: readonly string[];
}

function conclude(
  measured: Measured[],
  timing: Record<"settleSeconds" | "leadSeconds" | "pulseSeconds" | "steadySeconds", number>,
  planned: Planned,
): Outcome {
  const places = [...new Set(measured.map(({ config }) => config))].flatMap((config) =>
    setupsOf(measured, config).map((setup) => ({ config, setup })),
  );
  const goalTable = goalsOf(measured, planned);
  const latency: Section = {
    heading: "Latency",
    method:
      "Setups A, B0, B1, C0, C1 are those of the JackTrip-WebRTC paper: A connects microphone and speaker by the audio graph, B adds the paper's two worklets and its fixed de-jitter buffer of eight blocks (21.34 ms), C a data channel between two browsers; 0 hands audio between threads by messages, 1 by shared memory. A device plays coded pulses, 4 a second on each side, into a virtual microphone and finds them in what the virtual speaker plays, in one callback with one clock. " +
      `In each measurement ${timing.settleSeconds} s of settling, ${timing.leadSeconds} s of quiet noise, ${timing.pulseSeconds} s of pulses, ${timing.steadySeconds} s of steady tone. Sessions are interleaved; setups of one page have card A in the first, then B and A in turns. Nothing is subtracted. A pulse that was missed took longer than any that was heard; a percentile that falls among those is "never".`,
    uncertainty:
      "Each pulse is exact to one frame (0.02 ms) by calibration. What varies is the browser: it starts its streams at a phase of its own, so the medians of sessions differ by milliseconds, most of all in setup A. Both browsers, the rig and the server share this machine's processors; converters and drivers of real sound cards are not in the figures.",
    figures: [
      {
        kind: "box",
        title: "From mouth to ear",
        caption:
          "All pulses of all sessions and directions, the missed ones as the longest: minimum, quartiles, maximum, as in the paper's figures 6 and 7.",
        alt: `Box plot of latency in milliseconds. Medians: ${places
          .map(
            ({ config, setup }) =>
              `${config} ${setup} ${shown(median(of(measured, config, setup)), 1) ?? "unknown"}`,
          )
          .join("; ")}.`,
        xLabel: "mouth to ear, ms",
        rows: places.map(({ config, setup }) => ({
          group: config,
          label: setup,
          values: of(measured, config, setup).flatMap(({ result }) => allMs(result)),
          references: published
            .filter((one) => one.config === config && one.setup === setup)
            .map(({ label, ms }) => ({ label, value: ms })),
        })),
      },
      {
        kind: "cdf",
        title: "How often is it longer?",
        caption: "Share of pulses that took longer than so many milliseconds, Antiphon and setup A.",
        alt: "Curves of the share of pulses above each latency.",
        xLabel: "mouth to ear, ms",
        probability: "log",
        series: places
          .filter(({ setup }) => setup === "Antiphon" || setup === "A")
          .map(({ config, setup }) => ({
            label: `${config}, ${setup}`,
            values: of(measured, config, setup).flatMap(({ result }) => allMs(result)),
          })),
      },
    ],
    tables: [latencyTable(measured, places), goalTable, paperTable(measured)],
  };
  const sections = [
    latency,
    ownSection(measured),
    budgetSection(measured),
    playedSection(measured, places),
    instrumentSection(measured.map(({ result }) => result)),
  ];
  return {
    findings: findingsOf(measured, places, goalTable),
    sections,
    tables: {
      "raw.csv": rawCsv(measured),
      "looks.csv": looksCsv(measured),
      "runs.csv": runsCsv(measured),
    },
    versions: { browsers: [...new Set(measured.map(({ result }) => result.browserVersion))].join(", ") },
    doubts: [...calibrationDoubts(measured.map(({ result }) => result)), ...halvesDoubts(measured, planned)],
  };
}

/** Against the device: its own loop must be one quantum without spread, and whole. What the loop cannot show, frames that it missed, is judged step by step. */
export function calibrationDoubts(results: readonly Instrument[]): string[] {
  const doubts: string[] = [];
  const frames = known(
    results.flatMap(({ calibration }) => calibration.hits.map((hit) => hit.latencyFrames)),
  );
  const quanta = new Set(results.map(({ summary }) => summary.quantum_frames));
  if (results.length > 0 && (frames.length === 0 || frames.some((value) => !quanta.has(value))))
    doubts.push(
      `the device's own loop read ${quantile(frames, 0) ?? "nothing"} to ${quantile(frames, 1) ?? "nothing"} frames instead of one quantum`,
    );
  const missed = results.reduce((total, { calibration }) => total + calibration.missed, 0);
  if (missed > 0) doubts.push(`the device's own loop missed ${missed} of ${missed + frames.length} pulses`);
  return doubts;
}

type Instrument = Pick<SetupResult, "calibration" | "summary">;

/** What the device says of itself. */
export function instrumentSection(results: readonly Instrument[]): Section {
  const frames = known(
    results.flatMap(({ calibration }) => calibration.hits.map((hit) => hit.latencyFrames)),
  );
  return {
    heading: "The device's own loop",
    method:
      "During every measurement the device also plays its pulses into a speaker that nobody uses, and hears them from its monitor: its own loop, which must read one quantum of the sound graph, every time.",
    uncertainty:
      "A pulse is a code of 1,022 frames; its matched filter peaks over two frames and is read to the nearest one. The loop shows what is left of that error.",
    figures: [],
    tables: [
      {
        caption: "All measurements together",
        columns: [
          { name: "one quantum, frames", align: "right" },
          { name: "loop, least", align: "right" },
          { name: "loop, greatest", align: "right" },
          { name: "pulses", align: "right" },
          { name: "pulses missed", align: "right" },
        ],
        rows: [
          [
            [...new Set(results.map(({ summary }) => summary.quantum_frames))].join(", "),
            quantile(frames, 0),
            quantile(frames, 1),
            frames.length,
            results.reduce((total, { calibration }) => total + calibration.missed, 0),
          ],
        ],
      },
    ],
  };
}

function halvesDoubts(measured: readonly Measured[], { quick }: Planned): string[] {
  if (quick) return [];
  return measured.flatMap(({ session, config, setup, result }) =>
    result.directions.flatMap(({ name, hearing }) => {
      const middle = hearing.hits.length >> 1;
      const [first, second] = [hearing.hits.slice(0, middle), hearing.hits.slice(middle)].map(
        (hits) => quantile(latenciesMs(hits), 0.5) ?? Number.NaN,
      );
      const apart = Math.abs(first! - second!);
      if (apart <= agreementMs) return [];
      const what = Number.isFinite(apart) ? `moved by ${apart.toFixed(1)} ms` : "was silent for a time";
      return [`${config}, ${setup}, ${name} ${what} within session ${session}`];
    }),
  );
}

function latencyTable(measured: readonly Measured[], places: { config: string; setup: string }[]): Table {
  return {
    caption: "Latency, ms: all pulses, and the medians of the sessions in their order",
    columns: [
      { name: "browser" },
      { name: "setup" },
      { name: "median", align: "right" },
      { name: "5 %", align: "right" },
      { name: "95 %", align: "right" },
      { name: "medians of sessions" },
      { name: "pulses", align: "right" },
      { name: "missed", align: "right" },
      { name: "crosstalk, dB", align: "right" },
      { name: "breaks in tone", align: "right" },
    ],
    rows: places.map(({ config, setup }) => {
      const all = of(measured, config, setup);
      const directions = all.flatMap(({ result }) => result.directions);
      const ms = all.flatMap(({ result }) => allMs(result));
      const { breaks, unheard } = tones(directions.map(({ hearing }) => hearing));
      return [
        config,
        setup,
        ...[0.5, 0.05, 0.95].map((p) => shown(quantile(ms, p), 1)),
        all.map((one) => shown(median([one]), 1) ?? "–").join(", "),
        directions.reduce((sum, { hearing }) => sum + hearing.hits.length, 0),
        directions.reduce((sum, { hearing }) => sum + hearing.missed, 0),
        shown(quantile(known(directions.map(({ hearing }) => hearing.crosstalkDb)), 1), 0),
        `${breaks}${unheard}`,
      ];
    }),
  };
}

function goalsOf(measured: readonly Measured[], { sessions, configs: chosen, setups }: Planned): Table {
  const rows: Cell[][] = [];
  for (const config of setups.includes("Antiphon") ? chosen : []) {
    const goal = goals[config] ?? {};
    /** Null where it was not to be measured. A session in which one of the two was not heard is worse than any. */
    const against = (other: string, compare: (ours: number, theirs: number) => number) => {
      if (!setups.includes(other)) return null;
      const compared = Array.from({ length: sessions }, (_, index) => {
        const [ours, theirs] = ["Antiphon", other].map((setup) =>
          median(of(measured, config, setup).filter(({ session }) => session === index + 1)),
        );
        const isHeard = Number.isFinite(ours) && Number.isFinite(theirs);
        return isHeard ? compare(ours!, theirs!) : Number.POSITIVE_INFINITY;
      });
      return quantile(compared, 0.5);
    };
    const row = (
      figure: string,
      value: number | null,
      most: number | undefined,
      write: (value: number) => string,
    ) => {
      if (value === null) return;
      const met = most === undefined ? null : value <= most ? "yes" : "no";
      const text = Number.isFinite(value) ? write(value) : "not measured";
      rows.push([config, figure, text, most === undefined ? null : write(most), met]);
    };
    const ratio = (value: number) => value.toFixed(2);
    row(
      "Antiphon / setup A",
      against("A", (x, y) => x / y),
      goal.toA,
      ratio,
    );
    row(
      "Antiphon − setup A",
      against("A", (x, y) => x - y),
      goal.aboveAMs,
      (x) => `${x.toFixed(1)} ms`,
    );
    row(
      "Antiphon / RTC media",
      against("RTC", (x, y) => x / y),
      goal.toRtc,
      ratio,
    );
    row(
      "Antiphon relayed − direct",
      against("Antiphon, relayed", (x, y) => y - x),
      relayedGoalMs,
      (x) => `${x.toFixed(1)} ms`,
    );
    const ours = of(measured, config, "Antiphon");
    const isWhole = new Set(ours.map(({ session }) => session)).size === sessions;
    row(
      "frames concealed",
      (isWhole ? shareOf(ours, "concealedFrames") : null) ?? Number.POSITIVE_INFINITY,
      concealedGoal,
      percent,
    );
    const said = ours.flatMap(({ result }) => result.directions.map(summarise));
    const looks = known(said);
    row(
      `looks at the page's figure off by more than ${ownGoalMs} ms beyond their error`,
      // A page that said nothing is not to leave the others' looks alone.
      (isWhole && looks.length === said.length ? offShare(looks) : null) ?? Number.POSITIVE_INFINITY,
      goal.looksOff,
      percent,
    );
  }
  return {
    caption:
      "Against the goals: medians of the same session compared, shown is the median over the sessions. One in which a setup was not heard is the worst. Concealed frames and looks are of all sessions together, and one that is missing is the worst",
    columns: [
      { name: "browser" },
      { name: "figure" },
      { name: "measured", align: "right" },
      { name: "goal, at most", align: "right" },
      { name: "met" },
    ],
    rows,
  };
}

function paperTable(measured: readonly Measured[]): Table {
  return {
    caption:
      "Beside the figures that the paper gives in words (other machines, real sound cards, older browsers)",
    columns: [
      { name: "browser" },
      { name: "setup" },
      { name: "published" },
      { name: "here, ms", align: "right" },
    ],
    rows: published.map(({ config, setup, label }) => [
      config,
      setup,
      label,
      shown(median(of(measured, config, setup)), 1),
    ]),
  };
}

/** A look at the page's figure, beside the pulses that the device heard at that time. */
export interface Comparison {
  differenceMs: number;
  /** Within the error that the page states, and {@link ownGoalMs}. */
  isWithin: boolean;
}

/** The looks at a page that knows all stages, around which most of the pulses were heard. */
export function compareLooks(looks: readonly OwnLook[], hits: readonly Hit[]): Comparison[] {
  const comparisons = looks.map(({ frame, knownMs, errorMs, isWhole }): Comparison | null => {
    const heardMs = heardAround(frame, hits);
    if (heardMs === null || heardMs === Number.POSITIVE_INFINITY || !isWhole) return null;
    const differenceMs = knownMs - heardMs;
    return { differenceMs, isWithin: Math.abs(differenceMs) <= errorMs + ownGoalMs };
  });
  return known(comparisons);
}

/** What the device heard about when the take's `frame` was played, infinite if half of the pulses were missed; null: none was played. */
function heardAround(frame: number, hits: readonly Hit[]): number | null {
  const around = hits.filter(({ pulse }) => Math.abs(pulse.frame - frame) <= aroundMs * framesPerMs);
  return quantile(latenciesMs(around), 0.5);
}

/** All looks of a direction in one. */
interface OwnSummary {
  /** The middle one. */
  middle: OwnLook;
  leastMs: number;
  mostMs: number;
  looks: number;
  compared: number;
  within: number;
  /** The median of those compared; null if there are none. */
  differenceMs: number | null;
}

/** Null without a look. */
function summarise({ own, hearing }: Direction): OwnSummary | null {
  const sorted = [...own].sort((a, b) => a.knownMs - b.knownMs);
  const middle = sorted[sorted.length >> 1];
  if (middle === undefined) return null;
  const comparisons = compareLooks(own, hearing.hits);
  const differencesMs = comparisons.map(({ differenceMs }) => differenceMs);
  return {
    middle,
    leastMs: sorted[0]!.knownMs,
    mostMs: sorted.at(-1)!.knownMs,
    looks: own.length,
    compared: comparisons.length,
    within: comparisons.filter(({ isWithin }) => isWithin).length,
    differenceMs: quantile(differencesMs, 0.5),
  };
}

/** Share of the looks that are off or could not be compared; null if none could. */
export function offShare(all: readonly Pick<OwnSummary, "looks" | "compared" | "within">[]): number | null {
  const sum = (counter: "looks" | "compared" | "within") =>
    all.reduce((total, one) => total + one[counter], 0);
  return sum("compared") > 0 ? (sum("looks") - sum("within")) / sum("looks") : null;
}

/** The page's own probe beside the device. */
function ownSection(measured: readonly Measured[]): Section {
  const rows: Cell[][] = measured.flatMap(({ session, config, setup, result }) =>
    result.directions.flatMap((direction): Cell[][] => {
      const ms = quantile(latenciesMs(direction.hearing.hits), 0.5);
      const own = summarise(direction);
      if (own === null || ms === null) return [];
      return [
        [
          config,
          setup,
          session,
          direction.name,
          shown(ms, 1),
          shown(own.middle.knownMs, 1),
          shown(own.middle.errorMs, 1),
          own.middle.isWhole ? "yes" : "no",
          shown(own.differenceMs, 1),
          own.compared > 0 ? `${own.within} of ${own.compared}` : null,
          own.looks - own.compared,
        ],
      ];
    }),
  );
  return {
    heading: "The page's own figure",
    method: `Once a second both pages keep the mouth-to-ear delay that they show their musician (window.antiphon.stats, mouthToEar), and hand it all over in the end, for to be asked meanwhile delays their sound. They work it out from their clocks and their browsers' words, without the device. Of each direction's looks the middle one is shown, with the error that the page states for it. Each look is also compared with the median of the pulses from ${aroundMs} ms before to ${aroundMs} ms after it: the difference is the median of these, and a look is within the goal if it is off by no more than ${ownGoalMs} ms beyond the error it states. One could not be compared if the page did not know all stages or half of its pulses were missed; for the goal, which is that all looks are within, it counts as off.`,
    uncertainty: `A look and its pulses are simultaneous within 10 ms. Where the delay changes within ${aroundMs} ms, the median of the pulses is that of before or after.`,
    figures: [],
    tables: [
      {
        caption: "The device's median and the page's, and how they agree at the same time",
        columns: [
          { name: "browser" },
          { name: "setup" },
          { name: "session", align: "right" },
          { name: "direction" },
          { name: "device, ms", align: "right" },
          { name: "page, ms", align: "right" },
          { name: "stated error, ms", align: "right" },
          { name: "all stages known" },
          { name: "difference, ms", align: "right" },
          { name: "looks within", align: "right" },
          { name: "not compared", align: "right" },
        ],
        rows,
      },
    ],
  };
}

function ownWords({ knownMs, errorMs, isWhole }: OwnLook): string {
  return `${isWhole ? "" : "more than "}${shown(knownMs, 1)} ± ${shown(errorMs, 1)} ms`;
}

function budgetSection(measured: readonly Measured[]): Section {
  const rows = [...new Set(measured.map(({ config }) => config))].flatMap((config) => {
    const directions = of(measured, config, "Antiphon").flatMap(({ result }) => result.directions);
    const budgets = known(directions.map(({ budget }) => budget));
    const total = quantile(
      directions.flatMap(({ hearing }) => latenciesMs(hearing.hits)),
      0.5,
    );
    if (budgets.length === 0 || total === null) return [];
    const middle = (pick: (budget: Budget) => number) => quantile(budgets.map(pick), 0.5) ?? 0;
    const captureMs = middle(({ blockFrames }) => blockFrames / framesPerMs);
    const packetMs = middle((budget) => budget.packetMs);
    const networkMs = middle((budget) => budget.networkMs);
    const bufferMs = middle((budget) => budget.bufferMs);
    const rest = total - captureMs - packetMs - networkMs - bufferMs;
    const playoutMs = rest >= 0 && Number.isFinite(rest) ? rest : null;
    return [
      {
        label: rest < 0 ? `${config}, stages overlap` : config,
        stages: [
          { name: "capture", ms: captureMs, measured: true },
          { name: "packet", ms: packetMs, measured: true },
          { name: "network", ms: networkMs, measured: true },
          { name: "buffer", ms: bufferMs, measured: false },
          { name: "playout", ms: playoutMs, measured: false },
        ],
      },
    ];
  });
  return {
    heading: "Where the time goes",
    method:
      "Antiphon's page records when blocks were captured, datagrams sent and received (window.antiphon.trace). Capture is the length of the browser's block: its first frame waits for its last. Packet is from the block to the datagram, network from one page's network thread to the other's (the system's and the browser's own threads included). Buffer is what the jitter buffer aimed at, the middle of the looks while the pulses sounded. Playout is the rest of the measured mouth-to-ear latency: the browser's output queue, the sound system and the rig's own quantum.",
    uncertainty:
      "Capture, packet and network are medians of 3 s of packets, traced after the pulses; clocks of two processes on one machine agree within 0.1 ms. Buffer is an aim, and playout a remainder: both are drawn as estimates. The aim covers the bursts in which a browser's blocks come, so it overlaps with capture. Where the stages come to more than the measured median, playout is unknown; elsewhere it makes the sum the median.",
    figures: [
      {
        kind: "waterfall",
        title: "The delay budget",
        caption: "Medians. Estimates are drawn as such.",
        alt: rows
          .map(
            ({ label, stages }) =>
              `${label}: ${stages.map(({ name, ms }) => `${name} ${ms === null ? "unknown" : `${ms.toFixed(1)} ms`}`).join(", ")}`,
          )
          .join("; "),
        rows,
      },
    ],
    tables: [],
  };
}

function playedSection(measured: readonly Measured[], places: { config: string; setup: string }[]): Section {
  return {
    heading: "What was played",
    method:
      "Counters of the receiving end, which its page kept once a second, over pulses and tone, all sessions and directions together. A stream that ran dry counts neither played nor concealed frames: where more than a hundredth of the time is missing in what was counted, all that is missing was concealed.",
    uncertainty:
      "Exact for what each end counts; RTC media counts in its own way. Empty: it counts no such thing.",
    figures: [],
    tables: [
      {
        caption: "Shares of frames played, and of packets sent",
        columns: [
          { name: "browser" },
          { name: "setup" },
          { name: "concealed frames", align: "right" },
          { name: "skipped frames", align: "right" },
          { name: "lost packets", align: "right" },
          { name: "late packets", align: "right" },
          { name: "underruns", align: "right" },
          { name: "buffer, frames", align: "right" },
          { name: "quantum", align: "right" },
          { name: "browser reports base / output / input, ms", align: "right" },
        ],
        rows: places.map(({ config, setup }) => {
          const all = of(measured, config, setup);
          const directions = all.flatMap(({ result }) => result.directions);
          const middle = (pick: (direction: Direction) => number | null | undefined) =>
            quantile(known(directions.map((direction) => pick(direction) ?? null)), 0.5);
          const underruns = known(directions.map(({ counters }) => counters?.underruns ?? null));
          return [
            config,
            setup,
            ...(["concealedFrames", "skippedFrames", "lostPackets", "latePackets"] as const).map(
              (counter) => {
                const share = shareOf(all, counter);
                return share === null ? null : percent(share);
              },
            ),
            underruns.length > 0 ? underruns.reduce((a, b) => a + b, 0) : null,
            middle(({ counters }) => counters?.bufferFrames),
            middle(({ report }) => report.quantumFrames),
            (["reportedBaseLatencyMs", "reportedOutputLatencyMs", "reportedInputLatencyMs"] as const)
              .map(
                (key) =>
                  shown(
                    middle(({ report }) => report[key]),
                    1,
                  ) ?? "–",
              )
              .join(" / "),
          ];
        }),
      },
    ],
  };
}

function findingsOf(
  measured: readonly Measured[],
  places: { config: string; setup: string }[],
  goalTable: Table,
): string[] {
  const findings: string[] = [];
  for (const config of new Set(measured.map((one) => one.config))) {
    const figures = ["Antiphon", "A", "C1", "RTC"].flatMap((setup) => {
      const ms = shownMs(median(of(measured, config, setup)));
      const name = { A: "setup A", C1: "the paper's own way", RTC: "RTC media" }[setup] ?? setup;
      return ms === null ? [] : [`${name} ${ms}`];
    });
    if (figures.length > 0) findings.push(`${config}: ${figures.join(", ")} (medians).`);
  }
  const missed = goalTable.rows
    .filter((row) => row[4] === "no")
    .map((row) => `${row[0]}: ${row[1]} ${row[2]} (goal ${row[3]})`);
  if (missed.length > 0) findings.push(`Goals missed: ${missed.join("; ")}.`);
  const unheard = places.flatMap(({ config, setup }) => {
    const pulses = of(measured, config, setup).flatMap(({ result }) => allMs(result));
    const count = pulses.filter((ms) => ms === Number.POSITIVE_INFINITY).length;
    return count > 0 ? [`${config}, ${setup} ${count} of ${pulses.length}`] : [];
  });
  if (unheard.length > 0) findings.push(`Pulses missed: ${unheard.join("; ")}.`);
  return findings;
}

function rawCsv(measured: readonly Measured[]): CsvTable {
  return {
    columns: [
      "session",
      "config",
      "setup",
      "direction",
      "side",
      "pulse_frame",
      "latency_frames",
      "likeness",
      "crosstalk_db",
    ],
    rows: measured.flatMap(({ session, config, setup, result }) =>
      result.directions.flatMap(({ name, hearing }) =>
        hearing.hits.map(({ pulse, latencyFrames, likeness, crosstalkDb }): Cell[] => [
          session,
          config,
          setup,
          name,
          pulse.side === 0 ? "left" : "right",
          pulse.frame,
          latencyFrames,
          shown(likeness, 4),
          shown(crosstalkDb, 1),
        ]),
      ),
    ),
  };
}

/** Every look at the page's own figure, stage by stage. */
function looksCsv(measured: readonly Measured[]): CsvTable {
  const columns =
    "session config setup direction take_frame device_ms page_ms error_ms offset_error_ms input_ms capture_ms packet_ms network_ms buffer_ms playout_ms output_ms";
  return {
    columns: columns.split(" "),
    rows: measured.flatMap(({ session, config, setup, result }) =>
      result.directions.flatMap(({ name, hearing, own }) =>
        own.map((look): Cell[] => [
          session,
          config,
          setup,
          name,
          Math.round(look.frame),
          raw(heardAround(look.frame, hearing.hits), 2),
          shown(look.knownMs, 2),
          shown(look.errorMs, 2),
          shown(look.offsetErrorMs, 2),
          ...look.stagesMs.map((ms) => shown(ms, 2)),
        ]),
      ),
    ),
  };
}

function runsCsv(measured: readonly Measured[]): CsvTable {
  const columns =
    "session config setup direction median_ms p05_ms p95_ms pulses missed_pulses crosstalk_db steady_frames steady_breaks steady_silent_frames played_frames concealed_frames skipped_frames received_packets lost_packets late_packets underruns buffer_frames counted_seconds quantum_frames reported_base_latency_ms reported_output_latency_ms reported_input_latency_ms block_frames packet_ms network_ms buffer_aim_ms page_ms page_error_ms page_least_ms page_most_ms page_knows_all page_looks page_looks_compared page_looks_within calibration_min_frames calibration_max_frames device_xruns device_missed_frames page_errors";
  return {
    columns: columns.split(" "),
    rows: measured.flatMap(({ session, config, setup, result }) =>
      result.directions.map((direction): Cell[] => {
        const { name, hearing, counters, report, budget } = direction;
        const ms = latenciesMs(hearing.hits);
        const calibration = known(result.calibration.hits.map((hit) => hit.latencyFrames));
        const own = summarise(direction);
        return [
          session,
          config,
          setup,
          name,
          ...[0.5, 0.05, 0.95].map((p) => raw(quantile(ms, p), 2)),
          hearing.hits.length,
          hearing.missed,
          shown(hearing.crosstalkDb, 1),
          hearing.steady?.frames ?? null,
          hearing.steady?.breaks ?? null,
          hearing.steady?.silentFrames ?? null,
          counters?.playedFrames ?? null,
          counters?.concealedFrames ?? null,
          counters?.skippedFrames ?? null,
          counters?.receivedPackets ?? null,
          counters?.lostPackets ?? null,
          counters?.latePackets ?? null,
          counters?.underruns ?? null,
          counters?.bufferFrames ?? null,
          shown(counters?.seconds ?? null, 3),
          report.quantumFrames,
          shown(report.reportedBaseLatencyMs, 2),
          shown(report.reportedOutputLatencyMs, 2),
          shown(report.reportedInputLatencyMs, 2),
          budget?.blockFrames ?? null,
          shown(budget?.packetMs ?? null, 3),
          shown(budget?.networkMs ?? null, 3),
          shown(budget?.bufferMs ?? null, 2),
          shown(own?.middle.knownMs ?? null, 2),
          shown(own?.middle.errorMs ?? null, 2),
          shown(own?.leastMs ?? null, 2),
          shown(own?.mostMs ?? null, 2),
          own && (own.middle.isWhole ? "yes" : "no"),
          own?.looks ?? 0,
          own?.compared ?? 0,
          own?.within ?? 0,
          quantile(calibration, 0),
          quantile(calibration, 1),
          result.summary.xruns,
          result.summary.missed_frames,
          result.pageErrors.length,
        ];
      }),
    ),
  };
}

/** A counter's share of all frames played, or of all packets sent; of concealed frames also those of streams that ran dry. */
export function shareOf(
  measured: readonly { result: { directions: readonly Pick<Direction, "counters">[] } }[],
  counter: "concealedFrames" | "skippedFrames" | "lostPackets" | "latePackets",
): number | null {
  let part = 0;
  let whole = 0;
  for (const { counters } of measured.flatMap(({ result }) => result.directions)) {
    if (!counters) continue;
    const concealed = concealment(counters);
    const { receivedPackets, lostPackets } = counters;
    const value = counter === "concealedFrames" ? (concealed?.frames ?? null) : counters[counter];
    const packets = receivedPackets === null || lostPackets === null ? null : receivedPackets + lostPackets;
    const all = counter.endsWith("Frames") ? (concealed?.of ?? null) : packets;
    if (value === null || all === null) continue;
    part += value;
    whole += all;
  }
  return whole > 0 ? part / whole : null;
}

function of(measured: readonly Measured[], config: string, setup: string): Measured[] {
  return measured.filter((one) => one.config === config && one.setup === setup);
}

/** In the order of the list above. */
function setupsOf(measured: readonly Measured[], config: string): string[] {
  const there = new Set(measured.filter((one) => one.config === config).map(({ setup }) => setup));
  return Object.keys(setups).filter((name) => there.has(name));
}

/** Infinite of a pulse that was missed. */
export function latenciesMs(hits: readonly { latencyFrames: number | null }[]): number[] {
  return hits.map(({ latencyFrames }) => (latencyFrames ?? Number.POSITIVE_INFINITY) / framesPerMs);
}

function allMs(result: SetupResult): number[] {
  return result.directions.flatMap(({ hearing }) => latenciesMs(hearing.hits));
}

function median(measured: readonly Measured[]): number | null {
  return quantile(
    measured.flatMap(({ result }) => allMs(result)),
    0.5,
  );
}
