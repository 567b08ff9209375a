/** The microphone as musicians need it: two channels, nothing "enhanced". */
export async function openMicrophone() {
  return navigator.mediaDevices.getUserMedia({
    audio: {
      echoCancellation: false,
      noiseSuppression: false,
      autoGainControl: false,
      channelCount: 2,
      sampleRate: 48_000,
      latency: 0,
    },
  });
}
