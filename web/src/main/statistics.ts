/** The figures of one stream and of one participant, from what the audio thread and the worker publish. */

import { heardStats } from "../shared/heard";
import type { FarEnd, WorkerPeerStats } from "../shared/messages";
import type { Format } from "../shared/rungs";
import type { FarEndStats, MouthToEar, PeerStats, StreamStats } from "../shared/stats";
import type { Member } from "./member";
import { orNull, type StreamNumber } from "./stream-number";

export function streamStats(number: StreamNumber, worker: WorkerPeerStats | undefined): StreamStats {
  const count: StreamNumber = (field) => number(field) || 0;
  const known = (field: Parameters<StreamNumber>[0]) => orNull(number(field));
  return {
    receivedPackets: count("received"),
    lostPackets: count("lost"),
    recoveredPackets: count("recovered"),
    latePackets: count("late") + count("ancient"),
    duplicatePackets: count("duplicate") + (worker?.opusDuplicates ?? 0),
    reorderedPackets: count("reordered"),
    malformedPackets: count("malformed") + (worker?.refused ?? 0),
    receivedFrames: count("receivedFrames"),
    playedFrames: count("played"),
    concealedFrames: count("concealed"),
    copiedFrames: count("copied"),
    skippedFrames: count("skipped"),
    underruns: count("underruns"),
    bufferFrames: known("buffered"),
    targetFrames: count("target"),
    channels: known("channels"),
    bits: known("bits") as StreamStats["bits"],
    format: heardFormat(known("channels"), known("bits")),
    opusBps: worker?.heardOpusBps ?? null,
    spreadFrames: known("spread"),
    driftPpm: known("drift"),
    driftErrorPpm: known("driftError"),
    isResampled: count("resampled") === 1,
  };
}

/** Of a participant whose own stream has these numbers. `isMixed`: it is heard in the server's mix, after `mouthToEar`. */
export function peerStats(
  { participant, name, peer, hearing }: Member,
  number: StreamNumber,
  worker: WorkerPeerStats | undefined,
  { isMixed, mouthToEar }: { isMixed: boolean; mouthToEar: MouthToEar | null },
): PeerStats {
  const lanes = (worker?.lanes ?? []).map((lane) => ({
    ...lane,
    candidateType: peer?.candidateType(lane.lane) ?? null,
  }));
  const rtts = lanes.flatMap(({ rttMs }) => (rttMs === null ? [] : [rttMs]));
  const { direct, relayed } = worker?.ways ?? { direct: null, relayed: null };
  if (relayed !== null && relayed.rttMs !== null) rtts.push(relayed.rttMs);
  const farEnd = farEndOf(worker, isMixed);
  return {
    id: participant.id,
    name,
    connection: participant.connection,
    path: isMixed ? "mix" : pathOf(direct?.isHeard ?? false, relayed?.isHeard ?? false),
    pin: participant.pin,
    direct,
    relayed,
    lanes,
    rttMs: rtts.length > 0 ? Math.min(...rtts) : null,
    droppedBacklog: worker?.droppedBacklog ?? 0,
    ...streamStats(number, worker),
    sent: worker?.sent ?? null,
    peak: [number("peakLeft") || 0, number("peakRight") || 0],
    gain: participant.gain,
    pan: participant.pan,
    muted: participant.muted,
    mutedByOwner: participant.mutedByOwner,
    solo: participant.solo,
    mouthToEar,
    hearing: hearing && heardStats(hearing),
    captures: worker?.captures ?? null,
    heard: worker?.heard ?? null,
    farEnd: farEnd && farEndStats(farEnd),
  };
}

/** What is known of the end where a participant's sound is captured, or mixed. */
export function farEndOf(worker: WorkerPeerStats | undefined, isMixed: boolean): FarEnd | null {
  return (isMixed ? worker?.mixedFarEnd : worker?.farEnd) ?? null;
}

function pathOf(isDirect: boolean, isRelayed: boolean): PeerStats["path"] {
  if (isDirect) return isRelayed ? "both" : "direct";
  return isRelayed ? "relay" : null;
}

/** The engine knows the bits of samples; what it plays without any is Opus. */
function heardFormat(channels: number | null, bits: number | null): Format | null {
  if (channels === null) return null;
  return bits === 16 ? "s16" : bits === 24 ? "s24" : bits === 32 ? "f32" : "opus";
}

function farEndStats({ overrunFrames, droppedPackets }: FarEnd): FarEndStats {
  return { overrunFrames, droppedPackets };
}
