import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Loop, type MeshHost, Peer } from "../../src/main/mesh";
import { Negotiations } from "../../src/main/negotiations";
import type { PeerSignal } from "../../src/main/peer-signal";

/** As much of it as is looked at. */
const SDP = "v=0\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=ice-ufrag:abcd\r\n";

/** Connects when the test says so. */
class Connection {
  static made: Connection[] = [];
  /** As a browser that has made enough. */
  static refuses = false;
  connectionState: RTCPeerConnectionState = "new";
  signalingState: RTCSignalingState = "stable";
  localDescription: RTCSessionDescriptionInit | null = null;
  onconnectionstatechange = () => {};
  ondatachannel = () => {};
  /** What it was told of the peer. */
  described = 0;
  readonly candidates: RTCIceCandidateInit[] = [];
  /** Offers made with an ICE restart. */
  restarts = 0;
  constructor() {
    if (Connection.refuses) throw new DOMException("Cannot create so many PeerConnections");
    Connection.made.push(this);
  }
  createDataChannel() {
    return {};
  }
  async createOffer({ iceRestart }: RTCOfferOptions = {}) {
    if (iceRestart) this.restarts++;
    return { type: "offer", sdp: SDP };
  }
  async createAnswer() {
    return { type: "answer", sdp: SDP };
  }
  async setLocalDescription(description: RTCSessionDescriptionInit) {
    this.localDescription = description;
    this.signalingState = description.type === "offer" ? "have-local-offer" : "stable";
  }
  async setRemoteDescription({ type }: RTCSessionDescriptionInit) {
    this.described++;
    this.signalingState = type === "offer" ? "have-remote-offer" : "stable";
  }
  async addIceCandidate(candidate: RTCIceCandidateInit) {
    this.candidates.push(candidate);
  }
  async getStats() {
    return new Map();
  }
  becomes(state: RTCPeerConnectionState) {
    this.connectionState = state;
    this.onconnectionstatechange();
  }
  close() {
    this.connectionState = "closed";
  }
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("RTCPeerConnection", Connection);
  Connection.made = [];
  Connection.refuses = false;
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** One end of a pair, with one lane or as many as are wanted, and what it did. */
function end(
  own: string,
  other: string,
  lanes: number | "auto" = 1,
  {
    negotiations = Negotiations.ofPage(),
    addLane = () => {},
    canSignal = () => true,
  }: Partial<MeshHost> = {},
) {
  const made: number[] = [];
  const said: PeerSignal[] = [];
  const retired: number[] = [];
  const changed = vi.fn();
  const host: MeshHost = {
    addLane(...lane) {
      addLane(...lane);
      made.push(lane[2]);
    },
    closeLane() {},
    retireLane: (_stream, lane) => retired.push(lane),
    signal: (_to, signal) => said.push(signal) > 0,
    canSignal,
    changed,
    negotiations,
  };
  return { peer: new Peer(own, other, 1, lanes, [], host), made, said, retired, changed };
}

/** Until neither has anything more to say. */
async function converse(ends: ReturnType<typeof end>[]) {
  for (let turn = 0; turn < 20; turn++) {
    await vi.advanceTimersByTimeAsync(0);
    const said = ends.map(({ said }) => said.splice(0));
    for (const signal of said[0]!) ends[1]!.peer.handle(signal);
    for (const signal of said[1]!) ends[0]!.peer.handle(signal);
  }
}

it("closes a lane that is not needed any more once what is under way on it has come, at both ends", async () => {
  const [answers, offers] = [end("a", "b", 1), end("b", "a", "auto")];
  offers.peer.handle({ kind: "lanes", count: 3 });
  answers.said.splice(0);
  await converse([answers, offers]);
  const all = [...Connection.made];
  for (const lane of all) lane.becomes("connected");
  offers.peer.handle({ kind: "lanes", count: 1 });
  await converse([answers, offers]);
  expect([answers.retired, offers.retired]).toEqual([[2], [2]]);
  const closed = () => all.filter(({ connectionState }) => connectionState === "closed").length;
  await vi.advanceTimersByTimeAsync(999);
  expect(closed()).toBe(0);
  await vi.advanceTimersByTimeAsync(1);
  expect(closed()).toBe(2);
  offers.peer.handle({ kind: "lanes", count: 3 });
  await converse([answers, offers]);
  expect(Connection.made).toHaveLength(8);
  for (const { peer } of [answers, offers]) peer.close();
});

it.each([
  ["a", "b"],
  ["b", "a"],
])("meets one again that has forgotten it: as %s, with %s", async (own, other) => {
  const kept = end(own, other);
  let fresh = end(other, own);
  await converse([kept, fresh]);
  // Its first connection fails, and so does the one after it.
  const offers = own > other ? kept : fresh;
  for (let n = 0; n < 2; n++) offers.peer.laneClosed(0, offers.made.at(-1)!);
  await converse([kept, fresh]);
  expect(kept.made).toHaveLength(3);
  expect(kept.made.at(-1)).toBe(fresh.made.at(-1));
  kept.peer.handle({ kind: "relayed", wanted: false });
  kept.peer.handle({ kind: "direct", wanted: false });
  expect(kept.peer.wants).toEqual({ direct: false, relayed: false });

  await vi.advanceTimersByTimeAsync(5);
  fresh.peer.close();
  fresh = end(other, own);
  kept.peer.meetAgain();
  await converse([kept, fresh]);
  expect(kept.peer.wants).toEqual({ direct: true, relayed: true });
  expect(fresh.made).toEqual([kept.made.at(-1)]);
  expect(kept.made.at(-1)).toBeGreaterThan(kept.made.at(-2)!);
  kept.peer.close();
  fresh.peer.close();
});

it("follows what a peer wants at once, and not each time that it changes its mind", async () => {
  const { peer, changed } = end("a", "b");
  changed.mockClear();
  for (let n = 0; n < 1_000; n++) peer.handle({ kind: "direct", wanted: n % 2 === 1 });
  expect(changed).toHaveBeenCalledTimes(1);
  peer.handle({ kind: "direct", wanted: false });
  await vi.advanceTimersByTimeAsync(50);
  expect(changed).toHaveBeenCalledTimes(2);
  expect(peer.wants.direct).toBe(false);
  await vi.advanceTimersByTimeAsync(1_000);
  peer.handle({ kind: "direct", wanted: false });
  expect(changed).toHaveBeenCalledTimes(2);
  peer.close();
});

it("keeps a lane that is connected when it meets one again", () => {
  const { peer, made } = end("b", "a");
  Connection.made[0]!.connectionState = "connected";
  peer.meetAgain();
  expect(made).toHaveLength(1);
  Connection.made[0]!.connectionState = "disconnected";
  peer.meetAgain();
  expect(made).toHaveLength(2);
  expect(Connection.made[0]!.connectionState).toBe("closed");
  peer.close();
});

it.each([
  ["a", "b"],
  ["b", "a"],
])(
  "finds one again that has left it behind, though its own lane still looks well: as %s, with %s",
  async (own, other) => {
    const kept = end(own, other);
    const gone = end(other, own);
    await converse([kept, gone]);
    for (const connection of Connection.made) connection.connectionState = "connected";
    gone.peer.close();
    await vi.advanceTimersByTimeAsync(5);
    const fresh = end(other, own);
    kept.peer.meetAgain();
    await converse([kept, fresh]);
    // Only now is it seen that the other end of the channel has been closed.
    if (own > other) kept.peer.laneClosed(0, kept.made.at(-1)!);
    await converse([kept, fresh]);
    expect(kept.made).toHaveLength(2);
    expect(fresh.made).toEqual([kept.made[1]]);
    kept.peer.close();
    fresh.peer.close();
  },
);

it("asks again and again for a lane whose channel has closed, until it is offered anew", async () => {
  const [offers, answers] = [end("b", "a"), end("a", "b")];
  await converse([offers, answers]);
  for (const connection of Connection.made) connection.connectionState = "connected";
  answers.peer.laneClosed(0, answers.made[0]!);
  expect(answers.peer.connection).not.toBe("connected");
  // It is not heard at first.
  expect(answers.said.splice(0)).toEqual([{ kind: "restart", lane: 0 }]);
  await vi.advanceTimersByTimeAsync(5_000);
  await converse([offers, answers]);
  expect(offers.made).toHaveLength(2);
  expect(answers.made).toEqual(offers.made);
  offers.peer.close();
  answers.peer.close();
});

it.each([
  [4, "auto", 4],
  ["auto", 4, 4],
  [1, 3, 3],
  ["auto", "auto", 2],
  [1, "auto", 1],
] as const)(
  "makes as many lanes as either wants: %s of who offers, %s of who answers",
  async (offering, answering, count) => {
    const offers = end("b", "a", offering);
    let answers = end("a", "b", answering);
    await converse([offers, answers]);
    expect([offers.made.length, answers.made.length]).toEqual([count, count]);
    // The one that offers is new, and was told nothing.
    offers.peer.close();
    const fresh = end("b", "a", offering);
    answers.peer.meetAgain();
    await converse([fresh, answers]);
    expect(fresh.made).toHaveLength(count);
    answers.peer.close();
    answers = end("a", "b", answering);
    fresh.peer.meetAgain();
    await converse([fresh, answers]);
    expect(answers.made).toHaveLength(count);
    fresh.peer.close();
    answers.peer.close();
  },
);

it("goes back to the automatic number of lanes, be it by the end that offers or the other", async () => {
  const [offers, answers] = [end("b", "a", 1), end("a", "b", "auto")];
  const lanes = async () => {
    await converse([offers, answers]);
    return Connection.made.filter(({ connectionState }) => connectionState !== "closed").length / 2;
  };
  expect(await lanes()).toBe(1);
  offers.peer.wantLanes("auto");
  expect(await lanes()).toBe(2);
  answers.peer.wantLanes(4);
  expect(await lanes()).toBe(4);
  answers.peer.wantLanes("auto");
  expect(await lanes()).toBe(2);
  for (const { peer } of [offers, answers]) peer.close();
});

it("goes on by the lanes there are, though they are too many, until those in their place are connected", async () => {
  const { peer, said } = end("b", "a", 4);
  const closed = () => said.flatMap((signal) => (signal.kind === "close" ? [signal.lane] : []));
  for (const connection of Connection.made) connection.becomes("connected");
  for (const connection of Connection.made.slice(0, 2)) connection.becomes("disconnected");
  peer.wantLanes(2);
  expect(closed()).toEqual([]);
  Connection.made[0]!.becomes("connected");
  expect(closed()).toEqual([3]);
  Connection.made[1]!.becomes("connected");
  expect(closed()).toEqual([3, 2]);
  peer.close();
});

it("says that one is out of reach after 20 s without a lane, be it for the first time or not", async () => {
  const { peer, changed } = end("b", "a", 2);
  const lanes = () => Connection.made.filter(({ connectionState }) => connectionState !== "closed");
  await vi.advanceTimersByTimeAsync(19_900);
  expect(peer.connection).toBe("connecting");
  await vi.advanceTimersByTimeAsync(100);
  expect(peer.connection).toBe("failed");
  for (const lane of lanes()) lane.becomes("connected");
  expect(peer.connection).toBe("connected");
  lanes()[0]!.becomes("disconnected");
  await vi.advanceTimersByTimeAsync(60_000);
  expect(peer.connection, "there is another lane").toBe("connected");
  for (const lane of lanes()) lane.becomes("failed");
  await vi.advanceTimersByTimeAsync(19_900);
  expect(peer.connection).toBe("interrupted");
  changed.mockClear();
  await vi.advanceTimersByTimeAsync(100);
  expect(peer.connection).toBe("failed");
  expect(changed).toHaveBeenCalled();
  lanes()[0]!.becomes("connected");
  expect(peer.connection).toBe("connected");
  peer.close();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(vi.getTimerCount()).toBe(0);
});

it.each(["retry", "meetAgain"] as const)(
  "does not take one for lost that has just come back: %s",
  async (back) => {
    const { peer, changed } = end("b", "a");
    Connection.made[0]!.becomes("connected");
    Connection.made[0]!.becomes("failed");
    await vi.advanceTimersByTimeAsync(20_000);
    expect(peer.connection).toBe("failed");
    const seen: string[] = [];
    changed.mockImplementation(() => seen.push(peer.connection));
    peer[back]();
    expect(seen.at(-1)).toBe("interrupted");
    await vi.advanceTimersByTimeAsync(19_900);
    expect(peer.connection).toBe("interrupted");
    await vi.advanceTimersByTimeAsync(100);
    expect(seen.at(-1)).toBe("failed");
    peer.close();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(vi.getTimerCount()).toBe(0);
  },
);

it("goes on without lanes while the browser makes no more connections, and makes them later", async () => {
  Connection.refuses = true;
  const { peer } = end("b", "a");
  expect(peer.connection).toBe("connecting");
  Connection.refuses = false;
  await vi.advanceTimersByTimeAsync(16_000);
  expect(Connection.made).toHaveLength(1);
  // So too where one that there was is to be made anew.
  Connection.refuses = true;
  peer.laneClosed(0, Date.now());
  await vi.advanceTimersByTimeAsync(60_000);
  Connection.refuses = false;
  await vi.advanceTimersByTimeAsync(16_000);
  expect(Connection.made).toHaveLength(2);
  peer.close();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(vi.getTimerCount()).toBe(0);
});

it("makes two dozen connections in an hour for one who is out of reach, not hundreds", async () => {
  const { peer } = end("b", "a");
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(Connection.made.length).toBeGreaterThan(10);
  expect(Connection.made.length).toBeLessThan(25);
  // When signalling is back, it is soon tried again.
  const before = Connection.made.length;
  peer.retry();
  await vi.advanceTimersByTimeAsync(30_000);
  expect(Connection.made.length).toBeGreaterThan(before);
  peer.close();
});

it("makes no more of them though each fails, and the other end asks for a restart each time", async () => {
  const ends = [end("b", "a"), end("a", "b")];
  for (let seconds = 0; seconds < 3_600; seconds += 5) {
    await converse(ends);
    await vi.advanceTimersByTimeAsync(5_000);
    if (seconds % 15 !== 0) continue;
    for (const connection of Connection.made)
      if (connection.connectionState !== "closed") connection.becomes("failed");
  }
  expect(Connection.made.length).toBeGreaterThan(20);
  expect(Connection.made.length).toBeLessThan(50);
  for (const { peer } of ends) peer.close();
});

it("leaves a lane alone that has lost its path while the server is gone, and restores it when that is back", async () => {
  let isOnline = true;
  const { peer, made } = end("b", "a", 1, { canSignal: () => isOnline });
  const [connection] = Connection.made;
  connection!.becomes("connected");
  isOnline = false;
  connection!.becomes("disconnected");
  await vi.advanceTimersByTimeAsync(120_000);
  expect([made.length, connection!.restarts, connection!.connectionState]).toEqual([1, 0, "disconnected"]);
  isOnline = true;
  peer.retry();
  await vi.advanceTimersByTimeAsync(0);
  expect(connection!.restarts).toBe(1);
  peer.close();
});

it("restores at once what was connected and has failed, at both ends' word", async () => {
  const [offers, answers] = [end("b", "a"), end("a", "b")];
  await vi.advanceTimersByTimeAsync(300_000);
  await converse([offers, answers]);
  const [near, far] = Connection.made.filter(({ connectionState }) => connectionState !== "closed");
  for (const connection of [near!, far!]) connection.becomes("connected");
  await vi.advanceTimersByTimeAsync(5_000);
  near!.becomes("failed");
  await vi.advanceTimersByTimeAsync(0);
  expect(near!.restarts).toBe(1);
  far!.becomes("failed");
  await vi.advanceTimersByTimeAsync(1_000);
  await converse([offers, answers]);
  expect(near!.restarts).toBe(2);
  offers.peer.close();
  answers.peer.close();
});

it("makes no connections as fast as a peer may ask for them, and none for what is no offer", async () => {
  const { peer } = end("a", "b");
  peer.handle(description("answer"));
  expect(Connection.made).toHaveLength(0);
  for (let epoch = 1; epoch <= 1_000; epoch++) peer.handle(description("offer", epoch));
  expect(Connection.made).toHaveLength(64);
  await vi.advanceTimersByTimeAsync(1_000);
  for (let epoch = 1_001; epoch <= 1_010; epoch++) peer.handle(description("offer", epoch));
  expect(Connection.made).toHaveLength(65);
  peer.close();
});

/** The time of the first offer in what follows. */
const EPOCH = 1e12;
const description = (type: RTCSdpType, epoch: unknown = EPOCH, sdp: unknown = SDP, lane: unknown = 0) => ({
  kind: "description",
  lane,
  epoch,
  description: { type, sdp },
});
const candidate = (given: unknown, epoch: unknown = EPOCH) => ({
  kind: "candidate",
  lane: 0,
  epoch,
  candidate: given,
});
const long = "x".repeat(60_000);

it("passes over what is no signal, and goes on with what is", async () => {
  vi.setSystemTime(EPOCH);
  const [offers, answers] = [end("b", "a"), end("a", "b")];
  const noNumber = { valueOf: 0, toString: 0 };
  const lanes = [16, -1, 0.5, "0", null, noNumber];
  const nonsense: unknown[] = [
    ...[null, "lanes", [], {}, { kind: noNumber }, { kind: "toString" }],
    ...[0, 17, 1.5, -1, "2", null, noNumber].map((count) => ({ kind: "lanes", count })),
    ...["restart", "close"].flatMap((kind) => lanes.map((lane) => ({ kind, lane }))),
    ...(["offer", "answer"] as const).flatMap((type) => [
      ...[-1, 1.5, 2 ** 53, "9", null, [1e20], noNumber].map((epoch) => description(type, epoch)),
      ...lanes.map((lane) => description(type, EPOCH, SDP, lane)),
      ...[
        null,
        noNumber,
        "",
        SDP + SDP,
        SDP.replace("application", "audio"),
        `${SDP}m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n`,
        `${SDP}a=mid:${long}\r\n`,
        `${SDP}${"a=x\r\n".repeat(10_000)}`,
      ].map((sdp) => description(type, EPOCH, sdp)),
      { ...description(type), description: SDP },
      { ...description(type), description: null },
    ]),
    ...(["pranswer", "rollback"] as const).map((type) => description(type)),
    ...[undefined, "", 1, {}, { candidate: 1 }, { candidate: long }].map((given) => candidate(given)),
    ...[long, noNumber].map((sdpMid) => candidate({ candidate: "", sdpMid })),
    candidate({ candidate: "", sdpMLineIndex: -1 }),
    candidate({ candidate: "", usernameFragment: long }),
    candidate({ candidate: "" }, [1e20]),
  ];
  for (const { peer } of [offers, answers]) for (const data of nonsense) peer.handle(data);
  await vi.advanceTimersByTimeAsync(100);
  expect(Connection.made).toHaveLength(1);
  expect(offers.said.map(({ kind }) => kind)).toEqual(["description"]);
  expect(answers.said.map(({ kind }) => kind)).toEqual(["lanes"]);
  // As the native participant says it.
  const given = { candidate: "candidate:1", sdpMid: null, sdpMLineIndex: 0, usernameFragment: null };
  offers.peer.handle(candidate({ ...given, more: long }));
  offers.peer.handle(candidate(null));
  offers.peer.handle(description("answer"));
  await vi.advanceTimersByTimeAsync(0);
  const [{ described, candidates }] = Connection.made as [Connection];
  expect({ described, candidates }).toEqual({ described: 1, candidates: [given] });
  for (const { peer } of [offers, answers]) peer.close();
});

it("takes no description but an offer at one end, and its answer, once, at the other", async () => {
  const [offers, answers] = [end("b", "a"), end("a", "b")];
  await converse([offers, answers]);
  const described = () => Connection.made.map((connection) => connection.described);
  expect(described()).toEqual([1, 1]);
  const epoch = offers.made[0]!;
  for (let n = 0; n < 10; n++) {
    for (const type of ["offer", "answer"] as const) offers.peer.handle(description(type, epoch));
    answers.peer.handle(description("answer", epoch));
  }
  await vi.advanceTimersByTimeAsync(0);
  expect(described()).toEqual([1, 1]);
  expect(Connection.made).toHaveLength(2);
  // Offers of one epoch, too, are so many.
  for (let n = 0; n < 1_000; n++) answers.peer.handle(description("offer", epoch));
  await vi.advanceTimersByTimeAsync(0);
  expect(described()).toEqual([1, 64]);
  for (const { peer } of [offers, answers]) peer.close();
});

it("says no more than its own descriptions and candidates, whatever the peer says", async () => {
  const { peer, said } = end("a", "b");
  const extra = { more: long };
  const odd = { ...description("offer", Number.MAX_SAFE_INTEGER), ...extra };
  peer.handle({ ...odd, description: { ...odd.description, ...extra } });
  await vi.advanceTimersByTimeAsync(0);
  expect(said.map(({ kind }) => kind)).toEqual(["lanes", "description"]);
  for (const signal of said) expect(JSON.stringify(signal).length).toBeLessThan(SDP.length + 1_000);
  peer.close();
});

it("closes the connection of a peer that opens a channel of its own", () => {
  const { peer, changed } = end("b", "a");
  const [connection] = Connection.made;
  connection!.becomes("connected");
  changed.mockClear();
  connection!.ondatachannel();
  expect(connection!.connectionState).toBe("closed");
  expect(peer.connection).toBe("interrupted");
  expect(changed).toHaveBeenCalled();
  peer.close();
});

it("leaves no connection open whose channel could not be handed over", async () => {
  const addLane = vi.fn<MeshHost["addLane"]>(() => {
    throw new DOMException("it could not be cloned");
  });
  const { peer } = end("b", "a", 1, { addLane });
  expect(Connection.made.map(({ connectionState }) => connectionState)).toEqual(["closed"]);
  addLane.mockImplementation(() => {});
  await vi.advanceTimersByTimeAsync(16_000);
  expect(Connection.made).toHaveLength(2);
  peer.close();
});

/** What a peer may do, ten times a second, to have the end that offers make connections. */
const floods: Record<string, (of: ReturnType<typeof end>, open: Connection[]) => void> = {
  "by how many lanes it wants": ({ peer }) => {
    for (const count of [16, 1, 16]) peer.handle({ kind: "lanes", count });
  },
  "by channels that it closes": ({ peer, made }, open) => {
    for (const connection of open) connection.becomes("connected");
    for (const epoch of made.slice(-16)) for (let lane = 0; lane < 16; lane++) peer.laneClosed(lane, epoch);
  },
  "by asking to restart lanes that are well": ({ peer }, open) => {
    for (const connection of open) if (connection.connectionState === "new") connection.becomes("connected");
    for (let lane = 0; lane < 16; lane++) peer.handle({ kind: "restart", lane });
  },
  "by lanes that fail": ({ peer }, open) => {
    for (const connection of open) {
      connection.becomes("connected");
      connection.becomes("failed");
    }
    for (let lane = 0; lane < 16; lane++) peer.handle({ kind: "restart", lane });
  },
  "by coming back": ({ peer }) => peer.retry(),
  "by forgetting everything": ({ peer }) => peer.meetAgain(),
};

it.each(Object.entries(floods))(
  "keeps to what one peer, and the page, may negotiate: %s",
  async (_, flood) => {
    const alone = end("b", "a", 16);
    const crowd = { negotiations: Negotiations.ofPage() };
    const open = (since: number) =>
      Connection.made.slice(since).filter(({ connectionState }) => connectionState !== "closed");
    for (let tenths = 0; tenths < 600; tenths++) {
      flood(alone, open(0));
      await vi.advanceTimersByTimeAsync(100);
    }
    expect(Connection.made.length).toBeLessThanOrEqual(64 + 60);
    expect(alone.said.length).toBeLessThanOrEqual(2 * (64 + 60));
    alone.peer.close();

    const before = Connection.made.length;
    const peers = Array.from({ length: 10 }, (_, n) => end("b", `a${n}`, 16, crowd));
    for (let tenths = 0; tenths < 100; tenths++) {
      for (const peer of peers) flood(peer, peer === peers[0] ? open(before) : []);
      await vi.advanceTimersByTimeAsync(100);
    }
    expect(Connection.made.length - before).toBeLessThanOrEqual(128 + 4 * 10);
    expect(peers.flatMap(({ said }) => said).length).toBeLessThanOrEqual(2 * (128 + 4 * 10));
    for (const { peer } of peers) peer.close();
  },
);

it("makes a lane that never lasts ever less often, and one that lasted at once", async () => {
  const { peer, made } = end("b", "a");
  const live = async (ms: number) => {
    Connection.made.at(-1)!.becomes("connected");
    await vi.advanceTimersByTimeAsync(ms);
    peer.laneClosed(0, made.at(-1)!);
  };
  for (let n = 0; n < 20; n++) await live(5_000);
  expect(made).toHaveLength(21);
  for (let tenths = 0; tenths < 600; tenths++) await live(100);
  expect(made.length).toBeLessThan(21 + 7);
  peer.close();
});

it("makes all lanes of four peers at once, and restores them together, though a fifth asks for too much", async () => {
  const crowd = { negotiations: Negotiations.ofPage() };
  const hostile = end("m", "a", 1, crowd);
  for (let n = 0; n < 1_000; n++) for (const count of [16, 1]) hostile.peer.handle({ kind: "lanes", count });
  hostile.peer.close();
  Connection.made = [];
  const pairs = ["b", "c", "x", "y"].map((id) => [end("m", id, 8, crowd), end(id, "m", 8)]);
  for (const pair of pairs) await converse(pair);
  expect(Connection.made).toHaveLength(4 * 8 * 2);
  for (const connection of Connection.made) connection.becomes("connected");
  await vi.advanceTimersByTimeAsync(10_000);
  // The network is another one.
  for (const connection of Connection.made) connection.becomes("disconnected");
  await vi.advanceTimersByTimeAsync(2_500);
  for (const pair of pairs) await converse(pair);
  expect(Connection.made).toHaveLength(4 * 8 * 2);
  expect(Connection.made.map(({ described }) => described)).toEqual(Connection.made.map(() => 2));
  for (const { peer } of pairs.flat()) peer.close();
});

it("makes lanes that were too many at once when there may be more", async () => {
  const crowd = { negotiations: Negotiations.ofPage() };
  const peers = Array.from({ length: 10 }, (_, n) => end("b", `a${n}`, 16, crowd));
  expect(Connection.made).toHaveLength(128);
  for (const connection of Connection.made) connection.becomes("connected");
  await vi.advanceTimersByTimeAsync(10_000);
  expect(peers.map(({ made }) => made.length)).toEqual(peers.map(() => 16));
  for (const { peer } of peers) peer.close();
  expect(vi.getTimerCount()).toBe(0);
});

it("is found again by one that has not forgotten it though its clock was put back", async () => {
  const [offers, answers] = [end("b", "a"), end("a", "b")];
  await converse([offers, answers]);
  vi.setSystemTime(Date.now() - 3_600_000);
  offers.peer.meetAgain();
  await converse([offers, answers]);
  expect(offers.made).toHaveLength(2);
  expect(answers.made).toEqual(offers.made);
  for (const { peer } of [offers, answers]) peer.close();
});

it("says again how many lanes it wants, which may have been lost, unless it makes them itself", async () => {
  const [offers, answers] = [end("b", "a", 3), end("a", "b", 3)];
  await converse([offers, answers]);
  for (const connection of Connection.made) connection.connectionState = "connected";
  for (const { peer } of [offers, answers]) peer.retry();
  expect(answers.said).toEqual([{ kind: "lanes", count: 3 }]);
  expect(offers.said).toEqual([]);
  offers.peer.close();
  answers.peer.close();
});

it("offers the lanes to oneself again while they are not connected, and says when they cannot be", async () => {
  const negotiations = Negotiations.ofPage();
  const yes = () => true;
  const host: MeshHost = {
    addLane() {},
    closeLane() {},
    retireLane() {},
    signal: yes,
    canSignal: yes,
    changed: vi.fn(),
    negotiations,
  };
  const loop = new Loop(1, 1, [], host);
  const [near, far] = Connection.made;
  await vi.advanceTimersByTimeAsync(0);
  for (const lane of [near!, far!]) lane.becomes("connected");
  await vi.advanceTimersByTimeAsync(60_000);
  expect(near!.restarts).toBe(0);
  for (const lane of [near!, far!]) lane.becomes("failed");
  expect(loop.connection).toBe("interrupted");
  await vi.advanceTimersByTimeAsync(20_000);
  expect(loop.connection).toBe("failed");
  expect(near!.restarts).toBeGreaterThan(1);
  expect(far!.restarts).toBe(0);
  for (const lane of [near!, far!]) lane.becomes("connected");
  expect(loop.connection).toBe("connected");
  loop.close();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(vi.getTimerCount()).toBe(0);
});
