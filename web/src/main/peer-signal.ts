/** What the two ends of a pair say to each other: docs/protocol.md, "Between two pages". */

import type { WayName } from "../shared/messages";

/** Messages between the two ends of a lane. */
export type LaneSignal =
  | { kind: "description"; lane: number; epoch: number; description: Description }
  | { kind: "candidate"; lane: number; epoch: number; candidate: RTCIceCandidateInit | null };

export type PeerSignal =
  | LaneSignal
  | { kind: "lanes"; count: number }
  | { kind: "restart"; lane: number }
  | { kind: WayName; wanted: boolean }
  | { kind: "close"; lane: number };

export interface Description {
  type: RTCSdpType;
  sdp: string;
}

export const MAX_LANES = 16;
/** Of an SDP: a browser's has a thousand, and each of its candidates a hundred or two more. */
const MAX_SDP_CHARACTERS = 16_384;
/** What names an SDP's section, or a candidate's, is said again in the answer and in each candidate of ours. */
const MAX_LINE_CHARACTERS = 512;

/** Null if it is nothing that the protocol knows. Of the rest there is nothing in it but what the protocol names. */
export function parsePeerSignal(data: unknown): PeerSignal | null {
  const { kind, lane, epoch, ...said } = fields(data);
  switch (kind) {
    case "description": {
      const description = parseDescription(said.description);
      if (!isLane(lane) || !isCount(epoch) || description === null) return null;
      return { kind, lane, epoch, description };
    }
    case "candidate": {
      const candidate = parseCandidate(said.candidate);
      if (!isLane(lane) || !isCount(epoch) || candidate === undefined) return null;
      return { kind, lane, epoch, candidate };
    }
    case "restart":
    case "close":
      return isLane(lane) ? { kind, lane } : null;
    case "lanes": {
      const { count } = said;
      return isCount(count) && count >= 1 && count <= MAX_LANES ? { kind, count } : null;
    }
    case "direct":
    case "relayed":
      return { kind, wanted: said.wanted !== false };
    default:
      return null;
  }
}

function parseDescription(data: unknown): Description | null {
  const { type, sdp } = fields(data);
  if ((type !== "offer" && type !== "answer") || typeof sdp !== "string") return null;
  if (sdp.length > MAX_SDP_CHARACTERS || !sdp.split("\n").every(isLine)) return null;
  // A lane has one data channel, and neither sound nor pictures.
  const sections = sdp.match(/^m=\S*/gm);
  return sections?.length === 1 && sections[0] === "m=application" ? { type, sdp } : null;
}

/** Undefined if it is none; null is the end of them. */
function parseCandidate(data: unknown): RTCIceCandidateInit | null | undefined {
  if (data === null) return null;
  const { candidate, sdpMid = null, sdpMLineIndex = null, usernameFragment = null } = fields(data);
  const isRight =
    isLine(candidate) &&
    (sdpMid === null || isLine(sdpMid)) &&
    (sdpMLineIndex === null || isCount(sdpMLineIndex)) &&
    (usernameFragment === null || isLine(usernameFragment));
  return isRight ? { candidate, sdpMid, sdpMLineIndex, usernameFragment } : undefined;
}

function fields(data: unknown): Record<string, unknown> {
  return Object(data);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isLane(value: unknown): value is number {
  return isCount(value) && value < MAX_LANES;
}

function isLine(value: unknown): value is string {
  return typeof value === "string" && value.length <= MAX_LINE_CHARACTERS;
}
