import { openMicrophone } from "./microphone.js";

let context;
let microphone;

/** Setup A of the paper: one page, the microphone connected to the speaker by the audio graph and nothing else. */
const start = async () => {
  const stream = await openMicrophone();
  context = new AudioContext({ latencyHint: 0, sampleRate: 48_000 });
  context.createMediaStreamSource(stream).connect(context.destination);
  await context.resume();
  [microphone] = stream.getAudioTracks();
};

/** What the browser says of itself; `null` where it says nothing. */
const report = () => ({
  quantumFrames: context.renderQuantumSize ?? null,
  reportedBaseLatencyMs: ms(context.baseLatency),
  reportedOutputLatencyMs: ms(context.outputLatency),
  reportedInputLatencyMs: ms(microphone.getSettings().latency),
});

window.page = () => ({ start, report });

function ms(seconds) {
  return seconds === undefined ? null : seconds * 1000;
}
