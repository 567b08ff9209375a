import { openMicrophone } from "./microphone.js";

/** Setup A of the paper: one page, the microphone connected to the speaker by the audio graph and nothing else. */
window.start = async () => {
  const stream = await openMicrophone();
  const context = new AudioContext({ latencyHint: 0, sampleRate: 48_000 });
  context.createMediaStreamSource(stream).connect(context.destination);
  await context.resume();
  window.context = context;
  window.stream = stream;
};

/** What the browser says of itself; `null` where it says nothing. */
window.report = () => ({
  quantumFrames: window.context.renderQuantumSize ?? null,
  reportedBaseLatencyMs: ms(window.context.baseLatency),
  reportedOutputLatencyMs: ms(window.context.outputLatency),
  reportedInputLatencyMs: ms(window.stream.getAudioTracks()[0].getSettings().latency),
});

function ms(seconds) {
  return seconds === undefined ? null : seconds * 1000;
}
