/** What the browser says of its delays, in ms; `null` where it says nothing. */
export function reportOf(context, microphone) {
  return {
    quantumFrames: context.renderQuantumSize ?? null,
    reportedBaseLatencyMs: ms(context.baseLatency),
    // Firefox may stand still for ever if asked: docs/adr/0014-measured-mouth-to-ear.md.
    reportedOutputLatencyMs: navigator.userAgent.includes("Firefox/") ? null : ms(context.outputLatency),
    reportedInputLatencyMs: ms(microphone.getSettings().latency),
  };
}

function ms(seconds) {
  return seconds === undefined ? null : seconds * 1000;
}
