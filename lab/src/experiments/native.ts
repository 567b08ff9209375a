import { writeFileSync } from "node:fs";
import path from "node:path";
import { type Hearing, listen, quantile, tones } from "../analysis.js";
import { binary } from "../antiphon.js";
import { choose, chooseConfig, configs, describe, rotated } from "../configs.js";
import type { Experiment, Lab, Outcome, Plan, Step } from "../experiment.js";
import { lastLine } from "../machine.js";
import { makeFolder, removeFolder, run, Service, sleep } from "../processes.js";
import { type DeviceSummary, mic, playback, type Rig, sampleRateHz, speaker } from "../rig.js";
import { setups } from "../setups.js";
import { writeScore } from "../signal.js";
import { shown, shownMs } from "../units.js";
import { calibrationDoubts, forgetSeconds, instrumentSection, latenciesMs, startupSeconds } from "./m2e.js";

interface Measured {
  session: number;
  program: string;
  hearing: Hearing;
  calibration: Hearing;
  summary: DeviceSummary;
}

/** A native peer: started on the rig, its two ends wired to the cards; ended by what it returns. */
type Native = (lab: Lab, folder: string) => Promise<{ services: Service[]; links: [string, string][] }>;

const natives: Record<string, { about: string; start: Native }> = {
  JackTrip: {
    about: "peer to peer, 64 frames, queue 4, 16-bit stereo",
    start: async ({ rig }, folder) => {
      const end = (name: string, ...args: string[]) =>
        startJack(rig, folder, ["jacktrip", ...args, "-J", name, "-n", "2", "-q", "4", "-D", "-o", "0"]);
      const [first, second] = ["lab-jacktrip-a", "lab-jacktrip-b"];
      const services = [
        end(first!, "-s", "-B", "44640", "-P", "44641"),
        end(second!, "-c", "127.0.0.1", "-B", "44641", "-P", "44640"),
      ];
      return {
        services,
        links: [
          ...pairs(micOut("A"), [`${first}:send_1`, `${first}:send_2`]),
          ...pairs([`${second}:receive_1`, `${second}:receive_2`], playback("B")),
        ],
      };
    },
  },
  Jamulus: {
    about: "through its own server, 64 frames, stereo, high quality, automatic jitter buffer",
    start: async ({ rig }, folder) => {
      const settings = path.join(folder, "client.ini");
      writeFileSync(
        settings,
        `<client><audioquality>2</audioquality><audiochannels>2</audiochannels><enableopussmall>1</enableopussmall><autojitbuf>1</autojitbuf></client>\n`,
      );
      const server = startJack(rig, folder, [
        "Jamulus",
        "-s",
        "-n",
        "-F",
        "-p",
        "44650",
        "--serverbindip",
        "127.0.0.1",
      ]);
      await sleep(1000);
      const client = (name: string, port: number) =>
        startJack(rig, folder, [
          "Jamulus",
          "-n",
          "-j",
          "-c",
          "127.0.0.1:44650",
          "--clientname",
          name,
          "-p",
          String(port),
          "-i",
          settings,
        ]);
      const services = [client("a", 44_660), client("b", 44_680), server];
      return {
        services,
        links: [
          ...pairs(micOut("A"), ["Jamulus a:input left", "Jamulus a:input right"]),
          ...pairs(["Jamulus b:output left", "Jamulus b:output right"], playback("B")),
        ],
      };
    },
  },
  "Antiphon, native": {
    about: "peer to peer, 64 frames, automatic buffer, 16-bit stereo",
    start: (lab, folder) => startAntiphon(lab, folder, "direct"),
  },
  "Antiphon, native, relayed": {
    about: "the same through its own server",
    start: (lab, folder) => startAntiphon(lab, folder, "relay"),
  },
  "Antiphon, native, tight": {
    about: "peer to peer, 64 frames, tight buffer, 16-bit stereo",
    start: (lab, folder) => startAntiphon(lab, folder, "direct", "tight"),
  },
};

async function startAntiphon({ rig, product }: Lab, folder: string, way: string, buffer = "auto") {
  const link = product.lobbyUrl(product.newRoom());
  const join = (name: string) => {
    const options = [
      "--plain",
      "--device",
      "none",
      "--quantum",
      "64",
      "--packet",
      "64",
      "--path",
      way,
      "--buffer",
      buffer,
    ];
    const named = { ...rig, env: { ...rig.env, PIPEWIRE_PROPS: `{ node.name = lab-antiphon-${name} }` } };
    return startJack(named, folder, [binary, "join", link, "--name", name, ...options]);
  };
  return {
    services: [join("A"), join("B")],
    links: [
      ...pairs(micOut("A"), ["lab-antiphon-A:capture_1", "lab-antiphon-A:capture_2"]),
      ...pairs(["lab-antiphon-B:playback_1", "lab-antiphon-B:playback_2"], playback("B")),
    ],
  };
}

export const native: Experiment = {
  name: "native",
  title: "Beside native programs",
  question: "How does a browser with Antiphon compare with JackTrip and Jamulus on the same sound system?",
  programs: ["jacktrip", "Jamulus", "pw-jack", "pw-link"],
  plan(options): Plan<Measured> {
    const config = chooseConfig(options.configs);
    const chosen = choose(options.setups, [...Object.keys(natives), "Antiphon"]).filter(
      (name) => options.setups !== undefined || !options.quick || name === "JackTrip",
    );
    const sessions = options.sessions ?? (options.quick ? 1 : 3);
    const timing = options.quick
      ? { settleSeconds: 0.5, leadSeconds: 1.5, pulseSeconds: options.seconds ?? 2, steadySeconds: 1 }
      : {
          settleSeconds: 4,
          // Chromium needs it, and all are treated alike.
          leadSeconds: startupSeconds + forgetSeconds,
          pulseSeconds: options.seconds ?? 20,
          steadySeconds: 20,
        };
    let browsers = "";
    const steps: Step<Measured>[] = [];
    for (let session = 1; session <= sessions; session++) {
      for (const program of rotated(chosen, session, sessions)) {
        steps.push({
          label: `session ${session}, ${program}`,
          seconds: 8 + timing.settleSeconds + timing.leadSeconds + timing.pulseSeconds + timing.steadySeconds,
          run: async (lab) => {
            const one = (
              heard: Omit<Measured, "session" | "program">,
              name = program,
              troubles: readonly string[] = [],
            ) => ({
              measured: { session, program: name, ...heard },
              device: heard.summary,
              troubles,
              words: shownMs(quantile(latenciesMs(heard.hearing.hits), 0.5)) ?? "–",
            });
            if (program === "Antiphon") {
              const parameters = {
                quantum: 64,
                packet: 128,
                buffer: "auto",
                lanes: 1,
                bits: 16,
                channels: 2,
              };
              const result = await setups.Antiphon!({
                ...lab,
                browser: configs[config]!,
                parameters,
                ...timing,
              });
              browsers = result.browserVersion;
              const { calibration, summary, troubles } = result;
              const { hearing } = result.directions[0]!;
              return one({ hearing, calibration, summary }, `Antiphon, ${config}`, troubles);
            }
            return one(await measureNative(lab, program, timing));
          },
        });
      }
    }
    const versions = Promise.all([
      lastLine(["dpkg-query", "--show", "jacktrip"]),
      lastLine(["dpkg-query", "--show", "jamulus"]),
    ]);
    return {
      steps,
      conclude: async (measured) => conclude(measured, timing.leadSeconds, browsers, await versions),
    };
  },
};

async function measureNative(
  lab: Lab,
  program: string,
  timing: Record<"settleSeconds" | "leadSeconds" | "pulseSeconds" | "steadySeconds", number>,
) {
  const { rig } = lab;
  const folder = makeFolder("native");
  const { services, links } = await natives[program]!.start(lab, folder);
  try {
    await services[0]!.until(
      async () => {
        const ports = new Set(
          (await run(["pw-link", "-io"], rig.env)).split("\n").map((port) => port.trim()),
        );
        return links.flat().every((port) => ports.has(port));
      },
      "ports",
      20,
    );
    for (const [from, to] of links) await run(["pw-link", from, to], rig.env);
    await sleep(timing.settleSeconds * 1000);
    rig.favourSound();
    const score = writeScore({ voice: 0, sampleRateHz, ...timing, tailSeconds: 2 });
    const { heard, summary } = await rig.pass({
      plays: [
        { take: score.take, to: mic("A") },
        { take: score.take, to: playback("Loop") },
      ],
      hears: [speaker("B"), speaker("Loop")],
    });
    return {
      hearing: listen(heard[0]!, score),
      calibration: listen(heard[1]!, score, { maxLatencyFrames: 4096 }),
      summary,
    };
  } finally {
    for (const service of services) await service.stop();
    removeFolder(folder);
  }
}

/** A JACK program on the rig's sound system, headless, with a home of its own. */
function startJack(rig: Pick<Rig, "env" | "quantumFrames">, folder: string, command: string[]): Service {
  const env = {
    ...rig.env,
    HOME: folder,
    QT_QPA_PLATFORM: "offscreen",
    PIPEWIRE_LATENCY: `${rig.quantumFrames}/${sampleRateHz}`,
  };
  return Service.start(["pw-jack", ...command], env, path.join(folder, "log"));
}

/** What a program that listens to a card's microphone hears. */
function micOut(card: string): string[] {
  return [`mic${card}:capture_FL`, `mic${card}:capture_FR`];
}

function pairs(from: string[], to: string[]): [string, string][] {
  return from.map((port, index) => [port, to[index]!]);
}

function conclude(
  measured: Measured[],
  leadSeconds: number,
  browsers: string,
  [jacktrip, jamulus]: [string, string],
): Outcome {
  const programs = [...new Set(measured.map(({ program }) => program))];
  const of = (program: string) => measured.filter((one) => one.program === program);
  const all = (program: string) => of(program).flatMap(({ hearing }) => latenciesMs(hearing.hits));
  const tone = (program: string) => tones(of(program).map(({ hearing }) => hearing));
  return {
    findings: programs.map((program) => {
      const { breaks, seconds, unheard } = tone(program);
      return `${program}: ${shownMs(quantile(all(program), 0.5)) ?? "–"} from mouth to ear (median); ${breaks} breaks in ${shown(seconds, 0)} s of a tone${unheard}.`;
    }),
    sections: [
      {
        heading: "Native programs and Antiphon",
        method: `The same device, cards and pulses as in the experiment m2e, but A to B only, always heard at card B, over this machine's loopback network, after ${leadSeconds} s of quiet noise, for so long Chromium's start goes on and its buffer remembers it. ${describe(natives)} Antiphon: two Chromium browsers, as served, automatic buffer.`,
        uncertainty:
          "Each pulse is exact to one frame. The sound system's quantum is 64 frames; native programs are JACK clients of it, browsers go through its PulseAudio interface. A break in the tone is whatever interrupted it: a program's own xrun, a packet too late, or the sound system standing still, which all have alike. All share this machine's processors.",
        figures: [
          {
            kind: "box",
            title: "From mouth to ear",
            caption:
              "All pulses of all sessions: minimum, quartiles, maximum. One that was missed took longer than any.",
            alt: programs
              .map((program) => `${program}: median ${shownMs(quantile(all(program), 0.5)) ?? "unknown"}`)
              .join("; "),
            xLabel: "mouth to ear, ms",
            rows: programs.map((program) => ({ group: "", label: program, values: all(program) })),
          },
        ],
        tables: [
          {
            caption: "Latency, ms",
            columns: [
              { name: "program" },
              { name: "median", align: "right" },
              { name: "5 %", align: "right" },
              { name: "95 %", align: "right" },
              { name: "medians of sessions" },
              { name: "pulses", align: "right" },
              { name: "missed", align: "right" },
              { name: "breaks in tone", align: "right" },
              { name: "of s", align: "right" },
            ],
            rows: programs.map((program) => [
              program,
              ...[0.5, 0.05, 0.95].map((p) => shown(quantile(all(program), p), 1)),
              of(program)
                .map(({ hearing }) => shown(quantile(latenciesMs(hearing.hits), 0.5), 1) ?? "–")
                .join(", "),
              of(program).reduce((sum, { hearing }) => sum + hearing.hits.length, 0),
              of(program).reduce((sum, { hearing }) => sum + hearing.missed, 0),
              `${tone(program).breaks}${tone(program).unheard}`,
              shown(tone(program).seconds, 0),
            ]),
          },
        ],
      },
      instrumentSection(measured),
    ],
    tables: {
      "raw.csv": {
        columns: ["session", "program", "side", "pulse_frame", "latency_frames", "likeness"],
        rows: measured.flatMap(({ session, program, hearing }) =>
          hearing.hits.map(({ pulse, latencyFrames, likeness }) => [
            session,
            program,
            pulse.side === 0 ? "left" : "right",
            pulse.frame,
            latencyFrames,
            shown(likeness, 4),
          ]),
        ),
      },
    },
    versions: { browsers: browsers || "none", JackTrip: jacktrip, Jamulus: jamulus },
    doubts: calibrationDoubts(measured),
  };
}
