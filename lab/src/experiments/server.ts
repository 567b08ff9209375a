import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { quantile } from "../analysis.js";
import { binary, Product } from "../antiphon.js";
import { choose, describe, rotated } from "../configs.js";
import type { Experiment, Lab, Outcome, Plan, Step } from "../experiment.js";
import { lastLine } from "../machine.js";
import { freePort } from "../ports.js";
import { makeFolder, removeFolder, run, Service, sleep } from "../processes.js";
import { Rig, root, sampleRateHz } from "../rig.js";
import { percent, shown } from "../units.js";

/** What a server costs and how long it takes, with so many participants. */
interface Measured {
  session: number;
  program: string;
  participants: number;
  /** Share of one core that the server took. */
  cpuShare: number;
  /** How often its threads went to sleep and were woken, each second: what comes while they are awake costs less. */
  wakesPerS: number;
  /** Resident memory of the server. */
  memoryKib: number;
  /** From reading a datagram from the server's socket to writing it there, by the server itself; null where it says nothing. */
  transitUs: Percentiles | null;
  /** From the last frame that a mix needed to its way out. */
  mixUs: Percentiles | null;
  /** From a bot's clock to another's in the same process, server and both network stacks included. */
  oneWayUs: Percentiles | null;
  sent: number | null;
  received: number | null;
  lost: number | null;
  /** Of all that was to be heard, also of streams that nobody ever heard. */
  missingShare: number;
  /** Bots that were not in at the end; null of other clients. */
  absent: number | null;
}

interface Percentiles {
  p50: number;
  p99: number;
}

type Stoppable = Pick<Service, "stop">;

/** A server with its clients, all sending and receiving; ended by stopping `services` in order. */
interface Running {
  /** Processes whose cost is the server's. */
  server: readonly number[];
  services: Stoppable[];
  /** What the server says of the last second. */
  look?: () => Promise<Pick<Measured, "transitUs" | "mixUs">>;
  /** What the clients say, at the end. */
  figures?: () => Promise<
    Pick<Measured, "oneWayUs" | "sent" | "received" | "lost" | "missingShare" | "absent">
  >;
}

interface Program {
  about: string;
  counts: readonly number[];
  start(lab: Lab, folder: string, participants: number): Promise<Running>;
}

/** The server has a core of its own, and all clients share the other one. */
const serverCore = ["taskset", "--cpu-list", "0"];
const clientCore = ["taskset", "--cpu-list", "1"];
/** Frames of a packet, for every program. */
const packetFrames = 128;
const packetsPerS = sampleRateHz / packetFrames;
/** In the time of a packet bots send in so many turns, as musicians do not play in step. */
const usualTurns = 8;

const programs: Record<string, Program> = {
  "Antiphon, forwarded": {
    about: "rooms of two, each datagram forwarded to the other",
    counts: [2, 8, 20, 50, 100, 200],
    start: (_, folder, participants) =>
      startAntiphon(folder, { rooms: participants / 2, perRoom: 2, path: "relay" }),
  },
  "Antiphon, forwarded to everyone": {
    about: "one room, each datagram forwarded to all others",
    counts: [8, 20],
    start: (_, folder, participants) =>
      startAntiphon(folder, { rooms: 1, perRoom: participants, path: "relay" }),
  },
  "Antiphon, mixed": {
    about: "one room, a personal mix for each",
    counts: [2, 8, 20],
    start: (_, folder, participants) =>
      startAntiphon(folder, { rooms: 1, perRoom: participants, path: "mix" }),
  },
  "Antiphon, forwarded, in step": {
    about: "rooms of two, all participants send at the same moment",
    counts: [2, 8, 20],
    start: (_, folder, participants) =>
      startAntiphon(folder, { rooms: participants / 2, perRoom: 2, path: "relay", turns: 1 }),
  },
  "Antiphon, mixed, in step": {
    about: "one room, all participants send at the same moment",
    counts: [2, 8, 20],
    start: (_, folder, participants) =>
      startAntiphon(folder, { rooms: 1, perRoom: participants, path: "mix", turns: 1 }),
  },
  "Bare UDP": {
    about:
      "one read and one write for each datagram and nothing else, in rooms of two: what this machine's network costs anybody",
    counts: [2, 8, 20, 50, 100],
    start: (_, folder, participants) => startFloor(folder, participants, usualTurns),
  },
  "Bare UDP, in step": {
    about: "the same, all participants send at the same moment",
    counts: [2, 8, 20],
    start: (_, folder, participants) => startFloor(folder, participants, 1),
  },
  Jamulus: {
    about: "its server, a personal mix for each, Opus, stereo, high quality, packets of 128 frames",
    counts: [2, 8],
    start: startJamulus,
  },
  JackTrip: {
    about:
      "its hub, full mix for each, 16-bit stereo, packets of 128 frames, queue 4, with the sound system of its own that mixes for it and is counted with it",
    counts: [2, 8],
    start: startJackTrip,
  },
};

export const server: Experiment = {
  name: "server",
  title: "Through the server",
  question:
    "What does a server add on the way, and what does a participant cost it, with Antiphon, Jamulus and JackTrip on the same machine?",
  programs: ["chrt", "jacktrip", "Jamulus", "pw-jack", "pw-metadata", "taskset"],
  plan(options): Plan<Measured> {
    const chosen = choose(options.setups, Object.keys(programs));
    const seconds = options.seconds ?? (options.quick ? 2 : 20);
    const sessions = options.sessions ?? 1;
    const steps: Step<Measured>[] = [];
    for (let session = 1; session <= sessions; session++) {
      for (const program of rotated(chosen, session, sessions)) {
        const counts = programs[program]!.counts;
        if (options.quick && (program === "Jamulus" || program === "JackTrip")) continue;
        for (const participants of options.quick ? counts.slice(0, 1) : counts) {
          steps.push({
            label: `session ${session}, ${program}, ${participants} participants`,
            seconds: seconds + 10,
            run: async (lab) => {
              const measured = { session, ...(await measure(lab, program, participants, seconds)) };
              return {
                measured,
                words: `${shown((measured.cpuShare / participants) * 100, 2)} % of a core each, ${missingText(measured)} of the packets missing`,
              };
            },
          });
        }
      }
    }
    const versions = Promise.all([
      lastLine(["dpkg-query", "--show", "jacktrip"]),
      lastLine(["dpkg-query", "--show", "jamulus"]),
    ]);
    return { steps, conclude: async (measured) => conclude(measured, seconds, await versions) };
  },
};

async function measure(
  lab: Lab,
  program: string,
  participants: number,
  seconds: number,
): Promise<Omit<Measured, "session">> {
  const folder = makeFolder("server");
  let running: Running | undefined;
  try {
    running = await programs[program]!.start(lab, folder, participants);
    await sleep(5000);
    const ticks = () => sum(running!.server.map(cpuTicks));
    const before = ticks();
    const wakes = () => sum(running!.server.map(voluntarySwitches));
    const wakesBefore = wakes();
    const arrivedBefore = udpArrived();
    const began = performance.now();
    const looks: Pick<Measured, "transitUs" | "mixUs">[] = [];
    for (let second = 0; second < seconds; second++) {
      await sleep(1000);
      if (running.look) looks.push(await running.look());
    }
    const passed = (performance.now() - began) / 1000;
    const cpuShare = (ticks() - before) / ticksPerSecond / passed;
    const arrivedPerS = (udpArrived() - arrivedBefore) / passed;
    const wakesPerS = (wakes() - wakesBefore) / passed;
    const memoryKib = sum(running.server.map(residentKib));
    // Ends the bots.
    const figures = (await running.figures?.()) ?? {
      oneWayUs: null,
      sent: null,
      received: null,
      lost: null,
      // Each sends and hears one datagram for a packet. Bots count their own: QUIC has datagrams besides, and may put two packets into one.
      missingShare: 1 - arrivedPerS / (2 * participants * packetsPerS),
      absent: null,
    };
    return {
      program,
      participants,
      cpuShare,
      wakesPerS,
      memoryKib,
      transitUs: together(looks.map(({ transitUs }) => transitUs)),
      mixUs: together(looks.map(({ mixUs }) => mixUs)),
      ...figures,
    };
  } finally {
    for (const service of running?.services ?? []) await service.stop();
    removeFolder(folder);
  }
}

const ticksPerSecond = 100;
/** Where more is missing, somebody did not take part. */
const mostMissingShare = 0.1;

/** Else its cost is not that of so many participants. */
function isWhole({ missingShare, absent }: Pick<Measured, "missingShare" | "absent">): boolean {
  return missingShare <= mostMissingShare && !absent;
}

/** For people. What the programs say to each other besides makes it less than nothing. */
export function missingText({ missingShare }: Pick<Measured, "missingShare">): string {
  return percent(Math.max(0, missingShare));
}

/** The middle of all; null where somebody did not take part. */
function middle<T extends Pick<Measured, "missingShare" | "absent">>(
  all: readonly T[],
  figure: (one: T) => number,
): number | null {
  return all.every(isWhole) ? quantile(all.map(figure), 0.5) : null;
}

/** Of what was to be heard; null where the clients do not count it. */
function lostShare({ received, lost }: Pick<Measured, "received" | "lost">): number | null {
  return received === null || lost === null ? null : lost / Math.max(1, received + lost);
}

/** Processor time of a process and all its threads so far, in clock ticks (proc(5)). */
function cpuTicks(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return Number(fields[11]) + Number(fields[12]);
}

/** How often the threads of a process have given up the processor to wait so far (proc(5)). */
function voluntarySwitches(pid: number): number {
  const ofThread = (thread: string) =>
    Number(
      /^voluntary_ctxt_switches:\s+(\d+)$/m.exec(
        readFileSync(`/proc/${pid}/task/${thread}/status`, "utf8"),
      )?.[1],
    );
  return sum(readdirSync(`/proc/${pid}/task`).map(ofThread));
}

/** Datagrams that this machine's sockets have received so far (proc(5), net/snmp). */
function udpArrived(): number {
  return Number(/^Udp: (\d+)/m.exec(readFileSync("/proc/net/snmp", "utf8"))?.[1]);
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}

export function residentKib(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
}

/** What the server says of the last second, and what it has dropped since the start. */
interface RelayLook extends Pick<Measured, "transitUs" | "mixUs"> {
  /** To a participant whose sessions had no room. */
  aged: number;
  /** From a participant who sent more than it may. */
  overRate: number;
}

/** A server on its core, and on the other bots that send and hear through it. `summary` ends them. */
export async function startAntiphon(
  folder: string,
  load: { rooms: number; perRoom: number; path: string; turns?: number },
) {
  // All bots come from one address.
  const limits = ["--max-connections-per-address", "1000", "--max-participants-per-room", "64"];
  const product = await Product.start({ prefix: serverCore, options: limits });
  const json = path.join(folder, "bots.json");
  const command = [
    ...[...clientCore, binary, "join", "--plain", "--json", json],
    ...["--bots", String(load.perRoom), "--rooms", String(load.rooms), "--path", load.path],
    ...["--packet", String(packetFrames), "--sessions", "1", "--turns", String(load.turns ?? usualTurns)],
    product.lobbyUrl(product.newRoom()),
  ];
  const bots = Service.start(command, process.env, path.join(folder, "bots.log"));
  const summary = async () => {
    await bots.stop(5000);
    const said = JSON.parse(readFileSync(json, "utf8")) as BotsSummary;
    if (said.sent_packets === 0) throw new Error(`no bot came in: ${said.trouble}`);
    return said;
  };
  return {
    server: [product.service.pid!],
    services: [bots, product.service],
    summary,
    look: async (): Promise<RelayLook> => {
      const status = (await (await fetch(`${product.metricsUrl}/status.json`)).json()) as OperatorStatus;
      const rooms = status.relay?.rooms ?? [];
      const participants = rooms.flatMap((room) => room.participants);
      return {
        transitUs: status.relay?.transit_us ?? null,
        mixUs: together(rooms.map(({ mix_us }) => mix_us)),
        aged: sum(participants.map(({ aged }) => aged)),
        overRate: sum(participants.map(({ over_rate }) => over_rate)),
      };
    },
    figures: async () => {
      const said = await summary();
      return {
        oneWayUs: said.delay_p50_us === null ? null : { p50: said.delay_p50_us, p99: said.delay_p99_us! },
        sent: said.sent_packets,
        received: said.received_packets,
        lost: lostPackets(said, load.path),
        missingShare: missingShare(said, load),
        absent: absentBots(said, load),
      };
    },
  };
}

/** What the lab reads of the operator's `/status.json`. */
interface OperatorStatus {
  relay: {
    transit_us: Percentiles | null;
    rooms: { mix_us: Percentiles | null; participants: { aged: number; over_rate: number }[] }[];
  } | null;
}

/** What the lab reads of what `antiphon join --bots --json` writes at its end. */
export interface BotsSummary {
  /** In at the end. */
  bots: number;
  sent_packets: number;
  received_packets: number;
  dropped_packets: number;
  lost_packets: number;
  delay_p50_us: number | null;
  delay_p99_us: number | null;
  delay_p999_us: number | null;
  delay_max_us: number | null;
  trouble: string | null;
}

/** Packets that were not heard. Forwarded, what its sender had no room for is a number that never came; a mix has numbers of its own. */
export function lostPackets({ lost_packets, dropped_packets }: BotsSummary, path: string): number {
  return lost_packets + (path === "mix" ? dropped_packets : 0);
}

/** Of all that was to be heard. A stream that nobody ever heard is missing too, though no number of it is lost. */
export function missingShare(
  {
    sent_packets,
    dropped_packets,
    received_packets,
  }: Pick<BotsSummary, "sent_packets" | "dropped_packets" | "received_packets">,
  { perRoom, path }: { perRoom: number; path: string },
): number {
  const listeners = path === "mix" ? 1 : perRoom - 1;
  return 1 - received_packets / Math.max(1, (sent_packets + dropped_packets) * listeners);
}

/** Who was not in at the end. */
export function absentBots({ bots }: BotsSummary, { rooms, perRoom }: { rooms: number; perRoom: number }) {
  return rooms * perRoom - bots;
}

async function startFloor(folder: string, participants: number, turns: number): Promise<Running> {
  const floor = path.join(root, "target/release/antiphon-udp-floor");
  const address = `127.0.0.1:${await freePort()}`;
  // The class of the relay's own thread.
  const command = [...serverCore, "chrt", "--fifo", "1", floor, "serve", address];
  const server = Service.start(command, process.env, path.join(folder, "server.log"));
  await sleep(500);
  const play = [...clientCore, floor, "play", address, String(participants), String(turns)];
  const clients = Service.start(play, process.env, path.join(folder, "clients.log"));
  return { server: [server.pid!], services: [clients, server] };
}

/** What `start` adds ends with what it returns, the last first; and at once, if it fails. */
async function startAll(
  start: (add: <T extends Stoppable>(one: T) => T) => Promise<Omit<Running, "services">>,
): Promise<Running> {
  const services: Stoppable[] = [];
  try {
    const running = await start((one) => {
      services.unshift(one);
      return one;
    });
    return { ...running, services };
  } catch (error) {
    for (const one of services) await one.stop();
    throw error;
  }
}

async function startJamulus({ rig }: Lab, folder: string, participants: number): Promise<Running> {
  const settings = path.join(folder, "client.ini");
  writeFileSync(
    settings,
    "<client><audioquality>2</audioquality><audiochannels>2</audiochannels><enableopussmall>0</enableopussmall><autojitbuf>1</autojitbuf></client>\n",
  );
  return startAll(async (add) => {
    add({ stop: () => force(rig, 0) });
    await force(rig, packetFrames);
    const start = starter(rig, folder);
    const command = ["-s", "-n", "-p", "44650", "-u", String(participants), "--serverbindip", "127.0.0.1"];
    const server = add(start("server", serverCore, ["Jamulus", ...command]));
    await sleep(1000);
    for (let n = 0; n < participants; n++)
      add(
        start(`client${n}`, clientCore, [
          ...["Jamulus", "-n", "-j", "-c", "127.0.0.1:44650", "--clientname", `lab${n}`],
          ...["-p", String(44_660 + 20 * n), "-i", settings],
        ]),
      );
    return { server: [server.pid!] };
  });
}

async function startJackTrip({ rig }: Lab, folder: string, participants: number): Promise<Running> {
  return startAll(async (add) => {
    add({ stop: () => force(rig, 0) });
    await force(rig, packetFrames);
    const start = starter(rig, folder);
    // A hub connects its clients through a sound server, which does the mixing: one of its own, as on a hub's machine.
    const hub = add(await Rig.start({ cards: [], quantumFrames: packetFrames }));
    await force(hub, packetFrames);
    const { soundServerPid } = hub;
    await run(["taskset", "--all-tasks", "--cpu-list", "--pid", "0", String(soundServerPid)], process.env);
    const command = ["jacktrip", "-S", "-p", "4", "-q", "4", "-n", "2"];
    const server = add(starter(hub, folder)("server", serverCore, command));
    await sleep(1000);
    for (let n = 0; n < participants; n++)
      add(
        start(`client${n}`, clientCore, [
          ...["jacktrip", "-C", "127.0.0.1", "-J", `lab${n}`, "-n", "2", "-q", "4", "-D"],
          ...["-B", String(44_700 + n)],
        ]),
      );
    return { server: [server.pid!, soundServerPid] };
  });
}

/** The sound system's quantum, for every program on it, until the rig ends or it is set again; 0: as it was configured. */
async function force(rig: Rig, frames: number): Promise<void> {
  await run(["pw-metadata", "-n", "settings", "0", "clock.force-quantum", String(frames)], rig.env);
}

function starter(rig: Rig, folder: string) {
  const env = {
    ...rig.env,
    HOME: folder,
    QT_QPA_PLATFORM: "offscreen",
    PIPEWIRE_LATENCY: `${packetFrames}/${sampleRateHz}`,
  };
  return (name: string, core: readonly string[], command: readonly string[]) =>
    Service.start([...core, "pw-jack", ...command], env, path.join(folder, `${name}.log`));
}

/** Of several distributions: the median of their medians, and the worst of their tails. Null if there is none. */
function together(all: readonly (Percentiles | null)[]): Percentiles | null {
  const known = all.filter((one) => one !== null);
  const [p50, p99] = [
    quantile(
      known.map(({ p50 }) => p50),
      0.5,
    ),
    quantile(
      known.map(({ p99 }) => p99),
      1,
    ),
  ];
  return p50 === null || p99 === null ? null : { p50, p99 };
}

function conclude(measured: Measured[], seconds: number, [jacktrip, jamulus]: [string, string]): Outcome {
  const names = [...new Set(measured.map(({ program }) => program))];
  const each = ({ cpuShare, participants }: Measured) => (cpuShare / participants) * 100;
  const of = (program: string, participants: number, figure: (one: Measured) => number) =>
    middle(
      measured.filter((one) => one.program === program && one.participants === participants),
      figure,
    );
  const ratio = (program: string, other: string, participants: number) => {
    const [a, b] = [program, other].map((one) => of(one, participants, each)) as [
      number | null,
      number | null,
    ];
    return a === null || b === null ? null : a / b;
  };
  const inTurns = ["Antiphon, mixed", "Antiphon, forwarded"];
  const inStep = inTurns.map((program) => `${program}, in step`);
  // One sound system drives the clients of Jamulus and JackTrip, but one core computes them one after the other: wake-ups tell what that comes to.
  const pairs: [string, readonly string[]][] = [
    ["Jamulus", [...inTurns, ...inStep]],
    ["JackTrip", [...inTurns, ...inStep]],
    ["Bare UDP", inTurns],
    ["Bare UDP, in step", inStep],
  ];
  const comparisons = pairs.flatMap(([other, of]) =>
    of.flatMap((program) =>
      [2, 8].map((participants) => ({
        program,
        other,
        participants,
        times: ratio(program, other, participants),
      })),
    ),
  );
  const wakesAPacket = ({ wakesPerS, participants }: Measured) => wakesPerS / (participants * packetsPerS);
  const wakesOfEight = names.flatMap((program) => {
    const times = of(program, 8, wakesAPacket);
    return times === null ? [] : [`${program} ${shown(times, 2)}`];
  });
  return {
    findings: [
      ...comparisons
        .filter(({ times, participants }) => times !== null && participants === 8)
        .map(
          ({ program, other, times }) =>
            `${program}: ${shown(times, 2)} times the processor time of ${other} for each of 8 participants.`,
        ),
      ...(wakesOfEight.length > 0
        ? [`Wake-ups of the server for each packet of 8 participants: ${wakesOfEight.join("; ")}.`]
        : []),
      ...measured
        .filter(({ transitUs, mixUs }) => transitUs !== null || mixUs !== null)
        .map(
          ({ program, participants, transitUs, mixUs, ...counts }) =>
            `${program}, ${participants} participants: ${mixUs ? `mixed within ${micro(mixUs)}` : `through the server within ${micro(transitUs)}`} (median; 99 % in the worst second); ${lossWords(counts)} of the packets lost, ${missingText(counts)} missing in all.`,
        ),
      ...measured
        .filter((one) => !isWhole(one))
        .map(
          (one) =>
            `${one.program}, ${one.participants} participants, session ${one.session}: ${missingText(one)} of the packets are missing${one.absent ? `, bots not in at the end: ${one.absent}` : ""}. Not everyone took part, so its cost is compared with nothing.`,
        ),
    ],
    sections: [
      {
        heading: "What a participant costs the server",
        method: `The server runs on one core of this machine, all clients on the other. ${seconds} s each, after a pause of 5 s. Processor time and resident memory are the server processes' own, as the kernel counts them. In to out: from reading a datagram from the server's socket to writing it there; mix: from the last frame it needed to writing it there; both by the server itself, each second: the median of the seconds' medians, and the worst second's 99 %. One way: from bot to bot in one process, both network stacks included. ${describe(programs)} Antiphon's and bare UDP's participants are bots with 16-bit stereo in packets of ${packetFrames} frames; in the time of a packet they send in ${usualTurns} turns, which wakes the server as often, or in step, all at the same moment. The others' are the programs' own clients. The lab's sound system drives them all in one cycle, but each is a process that one core computes after the other, so Antiphon stands beside them both ways, and the wake-ups tell which is like. Jamulus's server reads everyone's packets in one thread: about one wake-up for each packet says that it met them one by one, like Antiphon's in turns; far fewer would say that it met several at once, like Antiphon's in step. JackTrip's hub has threads of its own for each client, and the sound system's beside them, which wake as often whenever the packets come: its wake-ups cannot tell. Lost counts packets that bots did not hear or had no room to send, from their start to their end: a number that never came though a later one did. Missing is the share of all that was to be heard which was not, also of streams that never began or ended early; of the programs' own clients and bare UDP it is that of the datagrams which should have reached the server and the clients, as the kernel counts them. Where it is more than ${percent(mostMissingShare)}, or a bot was not in at the end, somebody did not take part, and the cost of so many participants is unknown.`,
        uncertainty:
          "Missing has in it what bots sent before their listeners had come. Processor time is counted in steps of 10 ms. The network is the loopback: it costs no interrupts. Where the clients' core is full, the server gets less to do.",
        figures: [
          {
            kind: "line",
            title: "Processor time of the server",
            caption: "Share of one core, all participants together, median of the sessions.",
            alt: "Processor time against the number of participants, for each program.",
            xLabel: "participants",
            yLabel: "share of a core, %",
            series: names.map((program) => ({
              label: program,
              points: pointsOf(measured.filter((one) => one.program === program)),
            })),
          },
        ],
        tables: [
          {
            caption: "Each measurement",
            columns: [
              { name: "program" },
              { name: "participants", align: "right" },
              { name: "core, %", align: "right" },
              { name: "each, %", align: "right" },
              { name: "wake-ups/s", align: "right" },
              { name: "for each packet", align: "right" },
              { name: "memory, MiB", align: "right" },
              { name: "in to out, us: median", align: "right" },
              { name: "99 %", align: "right" },
              { name: "mix, us: median", align: "right" },
              { name: "99 %", align: "right" },
              { name: "one way, us: median", align: "right" },
              { name: "99 %", align: "right" },
              { name: "sent", align: "right" },
              { name: "lost", align: "right" },
              { name: "of those to be heard", align: "right" },
              { name: "missing", align: "right" },
              { name: "everyone took part" },
            ],
            rows: measured.map((one) => [
              one.program,
              one.participants,
              shown(one.cpuShare * 100, 1),
              shown(each(one), 2),
              Math.round(one.wakesPerS),
              shown(wakesAPacket(one), 2),
              shown(one.memoryKib / 1024, 1),
              ...[one.transitUs, one.mixUs, one.oneWayUs].flatMap((us) => [us?.p50 ?? null, us?.p99 ?? null]),
              one.sent,
              one.lost,
              lostShare(one) === null ? null : lossWords(one),
              missingText(one),
              isWhole(one) ? "yes" : "no",
            ]),
          },
          {
            caption: "Processor time for each participant, Antiphon's over the other's",
            columns: [
              { name: "program" },
              { name: "beside" },
              { name: "participants", align: "right" },
              { name: "times", align: "right" },
            ],
            rows: comparisons.map(({ program, other, participants, times }) => [
              program,
              other,
              participants,
              shown(times, 2),
            ]),
          },
        ],
      },
    ],
    tables: {
      "raw.csv": {
        columns: [
          "session",
          "program",
          "participants",
          "cpu_share",
          "wakes_per_s",
          "memory_kib",
          "forward_p50_us",
          "forward_p99_us",
          "mix_p50_us",
          "mix_p99_us",
          "one_way_p50_us",
          "one_way_p99_us",
          "sent",
          "received",
          "lost",
          "missing_share",
          "absent",
        ],
        rows: measured.map((one) => [
          one.session,
          one.program,
          one.participants,
          shown(one.cpuShare, 5),
          Math.round(one.wakesPerS),
          one.memoryKib,
          ...[one.transitUs, one.mixUs, one.oneWayUs].flatMap((us) => [us?.p50 ?? null, us?.p99 ?? null]),
          one.sent,
          one.received,
          one.lost,
          shown(one.missingShare, 5),
          one.absent,
        ]),
      },
    },
    versions: { JackTrip: jacktrip, Jamulus: jamulus },
    doubts: [],
  };
}

/** In order of the number of participants, whatever that of the sessions; unknown where somebody did not take part. */
export function pointsOf(
  all: readonly Pick<Measured, "participants" | "cpuShare" | "missingShare" | "absent">[],
) {
  const counts = [...new Set(all.map(({ participants }) => participants))].sort((a, b) => a - b);
  return counts.map((count) => {
    const there = all.filter(({ participants }) => participants === count);
    return {
      x: count,
      y: middle(there, ({ cpuShare }) => cpuShare * 100),
    };
  });
}

function lossWords(counts: Pick<Measured, "received" | "lost">): string {
  const share = lostShare(counts);
  return share === null ? "an unknown share" : percent(share);
}

function micro(us: Percentiles | null): string {
  return us === null ? "unknown" : `${Math.round(us.p50)} us, ${Math.round(us.p99)} us`;
}
