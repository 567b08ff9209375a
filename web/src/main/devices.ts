/** Microphones and speakers: opening them without processing, and recognising those that will not serve music. */

import type { Device, MicrophoneFault, Problem } from "./model";

/** Names of devices that add a radio link's delay. */
const BLUETOOTH = /bluetooth|airpods|buds|hands-?free|\bhfp\b|\ba2dp\b|wireless|beats|jabra|wh-1000|bose/i;
/** Names of software that processes sound for speech. */
const PROCESSED = /krisp|nvidia broadcast|rtx voice|voice ?isolation|noise|echo.?cancel|speakerphone/i;
/** A browser gives other pages neither. */
export const ONLY_SECURE =
  "The browser allows microphones and music only on https:// pages and on localhost. Ask whoever runs this server for an https link.";
/** Below this a device is in its telephone mode. */
const TELEPHONE_RATE_HZ = 32_000;

export async function openMicrophone(
  deviceId: string,
  channels: number,
  rateHz: number,
): Promise<MediaStream> {
  const audio: MediaTrackConstraints & { latency: number; voiceIsolation: boolean } = {
    ...(deviceId === "" ? {} : { deviceId: { exact: deviceId } }),
    autoGainControl: false,
    echoCancellation: false,
    noiseSuppression: false,
    voiceIsolation: false,
    latency: 0,
    channelCount: { ideal: channels },
    sampleRate: { ideal: rateHz },
  };
  return navigator.mediaDevices.getUserMedia({ audio });
}

/** Whether a device's name stands for whichever the system has chosen: Windows chooses two. The browser does not say when it is another. */
export function isStandIn(deviceId: string): boolean {
  return ["", "default", "communications"].includes(deviceId);
}

/** Whether the browser opens one without asking. *Errors* where it does not tell. */
export function microphonePermission(): Promise<PermissionStatus> {
  return navigator.permissions.query({ name: "microphone" });
}

export async function listDevices(): Promise<{ inputs: Device[]; outputs: Device[] }> {
  const all = await navigator.mediaDevices.enumerateDevices();
  const of = (kind: MediaDeviceKind) =>
    all
      .filter((device) => device.kind === kind && device.deviceId !== "")
      .map(({ deviceId, label }) => ({ id: deviceId, label }));
  return { inputs: of("audioinput"), outputs: of("audiooutput") };
}

/** What is wrong with an opened microphone, for music. */
export function inspectMicrophone(track: MediaStreamTrack): Problem[] {
  const problems: Problem[] = [];
  const { label } = track;
  const settings = track.getSettings();
  if (BLUETOOTH.test(label) || (settings.sampleRate ?? TELEPHONE_RATE_HZ) < TELEPHONE_RATE_HZ) {
    problems.push({
      id: "input-bluetooth",
      severity: "warning",
      title: `“${label}” looks like a Bluetooth device.`,
      remedy:
        "Bluetooth delays sound by 100 ms and more. Use a cable: a built-in microphone or an audio interface.",
    });
  }
  const processing = [
    settings.echoCancellation && "echo cancellation",
    settings.noiseSuppression && "noise suppression",
    settings.autoGainControl && "automatic gain",
  ].filter(Boolean);
  if (PROCESSED.test(label) || processing.length > 0) {
    problems.push({
      id: "input-processed",
      severity: "warning",
      title: `“${label}” processes your sound${processing.length > 0 ? ` (${processing.join(", ")})` : ""}.`,
      remedy:
        "Processing for speech swallows notes and adds delay. Switch it off in the system's sound settings, or choose another microphone.",
    });
  }
  return problems;
}

/** Why an older Firefox cannot capture for a room of `rateHz`: whatever the microphone's own rate, it records at that of the system's output. */
export function rateProblem(rateHz: number): Problem {
  const context = new AudioContext();
  const systemRateHz = context.sampleRate;
  void context.close();
  return {
    id: "microphone",
    severity: "error",
    title: "This browser cannot send your sound into this room: nobody hears you.",
    remedy: `It records at ${systemRateHz} Hz, and the room is at ${rateHz} Hz. Set the output in your system's sound settings to ${rateHz} Hz and start the browser anew, or use Chrome, Chromium, Edge or a newer Firefox. You still hear the others.`,
  };
}

/** By name: Firefox's OverconstrainedError is no DOMException. */
const errorName = (error: unknown) => (error instanceof Object && "name" in error ? error.name : "");

/** Why a microphone could not be opened. */
export function microphoneFault(error: unknown): MicrophoneFault {
  switch (errorName(error)) {
    case "NotAllowedError":
    case "SecurityError":
      return "refused";
    case "NotFoundError":
    case "OverconstrainedError":
      return "none";
    case "NotReadableError":
    case "AbortError":
      return "busy";
    default:
      return "failed";
  }
}

/** The same in plain words, with what to do. */
export function microphoneProblem(error: unknown): Problem {
  const words: Record<MicrophoneFault, [title: string, remedy: string]> = {
    refused: [
      "This page may not use the microphone.",
      "Click the icon beside the page's address and allow the microphone there, or in the system's privacy settings. Then try again.",
    ],
    none:
      errorName(error) === "OverconstrainedError"
        ? ["The microphone that you chose was not found.", "Plug it in or choose another, then try again."]
        : ["No microphone was found.", "Plug one in, then try again."],
    busy: [
      "The microphone does not open.",
      "You have allowed it, but most likely another program holds it: close that program, or choose another microphone. Then try again; if that does not help, unplug it and plug it in again.",
    ],
    failed: [
      "The microphone could not be opened.",
      navigator.mediaDevices ? `The browser says: ${String(error)}` : ONLY_SECURE,
    ],
  };
  const [title, remedy] = words[microphoneFault(error)];
  return { id: "microphone", severity: "error", title, remedy };
}
