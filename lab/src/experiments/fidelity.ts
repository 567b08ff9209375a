import { known, listen, quantile } from "../analysis.js";
import { choose, chooseConfig, configs } from "../configs.js";
import type { Experiment, Lab, Outcome, Plan } from "../experiment.js";
import { powerSpectrum } from "../fft.js";
import { mic, sampleRateHz, speaker } from "../rig.js";
import { meet } from "../setups.js";
import { scoreWith } from "../signal.js";
import { percent, shown } from "../units.js";
import type { Take } from "../wav.js";

interface Measured {
  config: string;
  setup: string;
  /** Both sides, cut to the material. */
  heard: Take;
  /** Null: nothing was heard. */
  latencyFrames: number | null;
  /** Share of frames whose two samples are the very numbers that were sent. */
  exactShare: number;
  /** Times the recording moved against the original, by frames that were skipped or inserted. */
  slips: number;
  /** Runs of frames that are not exact, with a few dozen exact ones before each; one more for each block's worth of such frames in a run. */
  breaks: number;
  /** Null of what was not heard. */
  levelDb: (number | null)[];
}

const spectrumFrames = 8192;
/** The recording is laid over the original anew for each of these. */
const blockFrames = 2400;
const maxSlipFrames = 4096;
/** So many in a row do not agree by chance, unless they are silent. */
const runFrames = 48;
/** The paper's figure 3: a bowed violin playing B4 quietly. */
const noteHz = 493.88;

export const fidelity: Experiment = {
  name: "fidelity",
  title: "Fidelity of the received sound",
  question: "Is what leaves B's speaker what entered A's microphone, in level, spectrum, and bit for bit?",
  programs: [],
  plan(options): Plan<Measured> {
    const config = chooseConfig(options.configs);
    const chosen = choose(options.setups, ["RTC", "Antiphon"]).filter(
      (setup) => options.setups !== undefined || !options.quick || setup === "Antiphon",
    );
    const seconds = options.seconds ?? (options.quick ? 1.5 : 6);
    const material = writeMaterial(seconds);
    let version = "";
    const steps = chosen.map((setup) => ({
      label: `${config}, ${setup}`,
      seconds: 14 + 2 * seconds,
      run: async ({ rig, pages, product }: Lab) => {
        // A fixed buffer: what the automatic one skips to be shorter is no question of fidelity.
        const parameters = { packet: 128, buffer: 4096, lanes: 1, bits: 16, channels: 2 };
        const stage = { rig, pages, product, browser: configs[config]!, parameters };
        return meet(stage, setup, async ([a]) => {
          const score = scoreWith(material, { voice: 0, sampleRateHz, leadSeconds: 2, pulseSeconds: 2 });
          rig.favourSound();
          const { heard, summary } = await rig.pass({
            plays: [{ take: score.take, to: mic("A") }],
            hears: [speaker("B")],
          });
          version = a.version;
          const { hits } = listen(heard[0]!, score);
          const middle = quantile(known(hits.map((hit) => hit.latencyFrames)), 0.5);
          const latencyFrames = middle === null ? null : Math.round(middle);
          const from = score.steady.from + (latencyFrames ?? 0);
          const cut = heard[0]!.map((side) => side.subarray(from, from + material[0]!.length));
          const measured = {
            config,
            setup,
            heard: cut,
            latencyFrames,
            // Silence agrees with what is silent in the material.
            ...(latencyFrames === null
              ? { exactShare: 0, slips: 0, breaks: 1 }
              : exactness(material, heard[0]!, from)),
            levelDb: cut.map((side, index) =>
              latencyFrames === null ? null : 10 * Math.log10(power(side) / power(material[index]!)),
            ),
          };
          return {
            measured,
            device: summary,
            words:
              latencyFrames === null
                ? "nothing was heard"
                : `${percent(measured.exactShare)} of frames bit-exact, level ${measured.levelDb.map((db) => shown(db, 2)).join(" and ")} dB`,
          };
        });
      },
    }));
    return { steps, conclude: (measured) => conclude(measured, material, version) };
  },
};

/** Stereo, 16-bit: a quiet bowed note on the left and another on the right, then noise over the whole band, each side its own. */
function writeMaterial(seconds: number): Take {
  const frames = Math.round(seconds * sampleRateHz);
  return [0, 1].map((side) => {
    let seed = 1 + side;
    const noise = () => {
      // Numerical Recipes' generator: the same material in every run.
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed / 2 ** 31 - 1;
    };
    const hz = side === 0 ? noteHz : noteHz * 1.5;
    return Float32Array.from({ length: 2 * frames }, (_, n) => {
      const fade = Math.min(1, (n % frames) / 2400, (frames - (n % frames)) / 2400);
      let value = 0;
      if (n < frames) {
        for (let harmonic = 1; harmonic <= 12; harmonic++)
          value += Math.sin((2 * Math.PI * hz * harmonic * n) / sampleRateHz) / harmonic ** 1.2;
        value = 0.1 * value + 0.002 * noise();
      } else value = 0.1 * noise();
      return Math.round(value * fade * 32_768) / 32_768;
    });
  });
}

/** Lays the recording over the original, which begins at its frame `from`, and follows it where it slips. */
function exactness(sent: Take, heard: Take, from: number): Pick<Measured, "exactShare" | "slips" | "breaks"> {
  const frames = sent[0]!.length;
  const isExact = (n: number, offset: number) =>
    sent.every((side, index) => side[n] === heard[index]![from + offset + n]);
  const wrong: number[] = [];
  let [slips, offset] = [0, 0];
  for (let begin = 0; begin < frames; begin += blockFrames) {
    const end = Math.min(frames, begin + blockFrames);
    const middle = (begin + end) >> 1;
    const fits = (candidate: number) => {
      let count = 0;
      for (let n = middle; n < Math.min(end, middle + runFrames); n++) if (isExact(n, candidate)) count++;
      return count >= runFrames / 2 && sent[0]![middle] !== 0;
    };
    if (!fits(offset)) {
      for (let apart = 1; apart <= maxSlipFrames; apart++) {
        const found = [offset + apart, offset - apart].find(fits);
        if (found === undefined) continue;
        offset = found;
        slips++;
        break;
      }
    }
    for (let n = begin; n < end; n++) if (!isExact(n, offset)) wrong.push(n);
  }
  return { exactShare: (frames - wrong.length) / frames, slips, breaks: countBreaks(wrong) };
}

/** `wrong`: the frames that are not exact, in order. */
function countBreaks(wrong: readonly number[]): number {
  let [breaks, first] = [0, 0];
  for (const [index, frame] of wrong.entries()) {
    const isApart = index === 0 || frame - wrong[index - 1]! > runFrames;
    if (isApart || index - first === blockFrames) {
      breaks++;
      first = index;
    }
  }
  return breaks;
}

function power(samples: Float32Array): number {
  return samples.reduce((sum, value) => sum + value * value, 0) / samples.length;
}

function conclude(measured: Measured[], material: Take, version: string): Outcome {
  const half = material[0]!.length / 2;
  const note = (take: Take) => powerSpectrum(take[0]!.subarray(0, half), spectrumFrames);
  const noise = (take: Take, side: number) => powerSpectrum(take[side]!.subarray(half), spectrumFrames);
  const sent = note(material);
  const loudest = Math.max(...sent);
  const bands = bandEdgesHz();
  const noteCurve = (label: string, spectrum: Float64Array) => ({
    label,
    points: [...spectrum.keys()]
      .filter((k) => hzOf(k) >= 100 && hzOf(k) <= 20_000)
      .map((k) => ({ x: hzOf(k), y: 10 * Math.log10(spectrum[k]! / loudest + 1e-12) })),
  });
  const sentNoise = [0, 1].map((side) => noise(material, side));
  /** Of each band the side that changed more. */
  const response = ({ heard }: Measured) => {
    const heardNoise = [0, 1].map((side) => noise(heard, side));
    return bands.map(({ centreHz, lowHz, highHz }) => {
      const [left, right] = [0, 1].map((side) => {
        const [after, before] = [heardNoise, sentNoise].map((of) => bandPower(of[side]!, lowHz, highHz));
        return 10 * Math.log10(after! / before! + 1e-12);
      }) as [number, number];
      return { x: centreHz, y: Math.abs(right) > Math.abs(left) ? right : left };
    });
  };
  const worst = (one: Measured) => Math.max(...response(one).map(({ y }) => Math.abs(y)));
  return {
    findings: measured.map((one) => {
      if (one.latencyFrames === null) return `${one.setup}: nothing was heard.`;
      return one.exactShare === 1
        ? `${one.setup}: every one of ${material[0]!.length} frames left the speaker bit for bit as it entered the microphone.`
        : `${one.setup}: ${percent(one.exactShare)} of the frames are bit-exact; the level changed by up to ${shown(worst(one), 1)} dB in a third of an octave.`;
    }),
    sections: [
      {
        heading: "Spectrum, level, bits",
        method: `16-bit stereo material from A's microphone to B's speaker, A to B only: a quiet bowed note (B4 left, a fifth above right) as in the paper's figure 3, then noise. Coded pulses before it tell the delay, by which the recording is laid over the original. Bit-exact: both samples of a frame are the very numbers sent. Spectra by Welch's method, Hann windows of ${spectrumFrames} frames.`,
        uncertainty: `Bit-exactness is exact, looked for every 50 ms at up to 85 ms from where it was: a slip costs the frames up to the next look. Frames that are not exact, with no ${runFrames} exact ones between them, are one break for each 50 ms of them: a machine that holds something up makes one or a few, rounding or resampling as many as fit. A third-octave band of the noise is known within 0.5 dB above 100 Hz.`,
        figures: [
          {
            kind: "spectrum",
            title: "The note",
            caption:
              "Left side, relative to the loudest line sent. Where curves cover each other, nothing was changed.",
            alt: "Spectra of the note as sent and as received by each way.",
            xLabel: "frequency, Hz",
            yLabel: "level, dB",
            series: [
              noteCurve("sent", sent),
              ...measured.map((one) => noteCurve(one.setup, note(one.heard))),
            ],
          },
          {
            kind: "spectrum",
            title: "What was changed",
            caption:
              "Received over sent, noise, in thirds of an octave, of each the side that changed more: 0 dB is unchanged.",
            alt: measured.map((one) => `${one.setup}: at most ${shown(worst(one), 2)} dB`).join("; "),
            xLabel: "frequency, Hz",
            yLabel: "change, dB",
            series: measured.map((one) => ({ label: one.setup, points: response(one) })),
          },
        ],
        tables: [
          {
            caption: "Sent and received",
            columns: [
              { name: "browser" },
              { name: "way" },
              { name: "frames", align: "right" },
              { name: "bit-exact", align: "right" },
              { name: "slips", align: "right" },
              { name: "breaks", align: "right" },
              { name: "level left, dB", align: "right" },
              { name: "level right, dB", align: "right" },
              { name: "greatest change in a band, dB", align: "right" },
              { name: "delay, frames", align: "right" },
            ],
            rows: measured.map((one) => [
              one.config,
              one.setup,
              one.heard[0]!.length,
              percent(one.exactShare),
              one.slips,
              one.breaks,
              ...one.levelDb.map((db) => shown(db, 3)),
              shown(worst(one), 2),
              one.latencyFrames,
            ]),
          },
        ],
      },
    ],
    tables: {
      "response.csv": {
        columns: ["config", "setup", "centre_hz", "change_db"],
        rows: measured.flatMap((one) =>
          response(one).map(({ x, y }) => [one.config, one.setup, shown(x, 1), shown(y, 3)]),
        ),
      },
      "runs.csv": {
        columns: [
          "config",
          "setup",
          "frames",
          "exact_share",
          "slips",
          "breaks",
          "level_left_db",
          "level_right_db",
          "delay_frames",
        ],
        rows: measured.map((one) => [
          one.config,
          one.setup,
          one.heard[0]!.length,
          one.exactShare,
          one.slips,
          one.breaks,
          ...one.levelDb.map((db) => shown(db, 4)),
          one.latencyFrames,
        ]),
      },
    },
    versions: { browsers: version },
    doubts: [],
  };
}

function hzOf(k: number): number {
  return (k * sampleRateHz) / spectrumFrames;
}

/** Thirds of an octave, base ten (IEC 61260), 100 Hz to 20 kHz. */
function bandEdgesHz(): { centreHz: number; lowHz: number; highHz: number }[] {
  return Array.from({ length: 24 }, (_, index) => {
    const centreHz = 1000 * 10 ** ((index - 10) / 10);
    return { centreHz, lowHz: centreHz * 10 ** -0.05, highHz: centreHz * 10 ** 0.05 };
  });
}

function bandPower(spectrum: Float64Array, lowHz: number, highHz: number): number {
  let sum = 0;
  for (let k = 1; k < spectrum.length; k++) if (hzOf(k) >= lowHz && hzOf(k) < highHz) sum += spectrum[k]!;
  return sum;
}
