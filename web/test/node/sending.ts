import type { SendConfig } from "../../src/shared/rungs";

/** What is sent in tests that do not care: 16-bit stereo, and nothing that changes by itself. */
export const SENDING: SendConfig = {
  rateHz: 48_000,
  channels: 2,
  packetFrames: 128,
  bits: 16,
  opusKbps: 128,
  copies: "off",
  adapts: false,
  addsLanes: false,
};
