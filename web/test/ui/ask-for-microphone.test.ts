import { expect, it, vi } from "vitest";
import type { StudioApi, StudioState } from "../../src/main/model";
import { askForMicrophone, microphoneAction } from "../../src/main/ui/ask-for-microphone";

it("asks for the microphone, but not while the browser asks: that answer would count no more", () => {
  const asked = (microphone: StudioState["microphone"]) => {
    const enableMicrophone = vi.fn(async () => {});
    askForMicrophone({
      state: () => ({ microphone }) as StudioState,
      studio: { enableMicrophone } as Partial<StudioApi> as StudioApi,
      attempt: (request) => request(),
    });
    return [microphoneAction({ microphone, microphoneAllowed: false }), enableMicrophone.mock.calls.length];
  };
  expect(asked("unasked")).toEqual(["Allow microphone", 1]);
  expect(asked("asking")).toEqual(["Waiting for you…", 0]);
  expect(microphoneAction({ microphone: "unasked", microphoneAllowed: true })).toBe("Use my microphone");
  for (const state of ["refused", "busy", "ended"] as const)
    expect(asked(state)).toEqual(["Try the microphone again", 1]);
});
