import { reportOf } from "./browser-report.js";
import { openMicrophone } from "./microphone.js";
import { blockFrames, DejitterBuffer, packetBytes, SendRing } from "./paper-buffer.js";

/**
 * JackTrip-WebRTC as its paper describes it, written afresh: the reference to compare with. Every packet crosses the main thread.
 *
 * Setup B: from microphone to speaker in one page. C: over a data channel to another page. 0: messages between the threads. 1: shared
 * memory. In 0 the de-jitter buffer is the audio thread's own; the main thread only reads its counters there.
 */
const setup = new URLSearchParams(location.search).get("setup") ?? "";
if (!/^[BC][01]$/.test(setup)) throw new Error(`setup must be B0, B1, C0 or C1, not "${setup}"`);
const [path, memory] = setup;

const bufferMemory = DejitterBuffer.createMemory();
const buffer = new DejitterBuffer(bufferMemory);
const connection = path === "C" ? new RTCPeerConnection() : null;
const channel = connection?.createDataChannel("audio", {
  negotiated: true,
  id: 0,
  ordered: false,
  maxRetransmits: 0,
});
let context;
let microphone;
let receiver;

const start = async () => {
  const stream = await openMicrophone();
  [microphone] = stream.getAudioTracks();
  context = new AudioContext({ latencyHint: 0, sampleRate: 48_000 });
  if ((context.renderQuantumSize ?? blockFrames) !== blockFrames)
    throw new Error(`the browser renders ${context.renderQuantumSize} frames at a time, not ${blockFrames}`);
  await context.audioWorklet.addModule("paper-worklets.js");
  const ringMemory = memory === "1" ? SendRing.createMemory() : null;
  const sender = new AudioWorkletNode(context, "audio-sender", {
    numberOfOutputs: 0,
    channelCount: 2,
    channelCountMode: "explicit",
    processorOptions: { ringMemory },
  });
  receiver = new AudioWorkletNode(context, "audio-receiver", {
    numberOfInputs: 0,
    outputChannelCount: [2],
    processorOptions: { bufferMemory },
  });
  if (channel) {
    channel.binaryType = "arraybuffer";
    channel.onmessage = ({ data }) => data.byteLength === packetBytes && receive(data);
  }
  if (ringMemory) new SendRing(ringMemory).drain(send);
  else sender.port.onmessage = ({ data }) => send(data);
  context.createMediaStreamSource(stream).connect(sender);
  receiver.connect(context.destination);
  await context.resume();
};

function send(packet) {
  if (!channel) receive(packet);
  else if (channel.readyState === "open") channel.send(packet);
}

function receive(packet) {
  if (memory === "1") buffer.enqueue(packet);
  else receiver.port.postMessage(packet);
}

/** With no argument makes the offer; with an offer, the answer. The driver carries both. */
const describe = async (offer) => {
  if (!connection) throw new Error(`setup ${setup} has no network`);
  if (offer) await connection.setRemoteDescription(offer);
  await connection.setLocalDescription();
  while (connection.iceGatheringState !== "complete") {
    await new Promise((resolve) =>
      connection.addEventListener("icegatheringstatechange", resolve, { once: true }),
    );
  }
  const { type, sdp } = connection.localDescription;
  return { type, sdp };
};

const accept = async (answer) => connection.setRemoteDescription(answer);

const ready = () => buffer.counters.playedFrames > 0;

const counters = async () => buffer.counters;

const report = () => reportOf(context, microphone);

window.page = () => ({ start, describe, accept, ready, report, counters });
