import { expect, it } from "vitest";
import { deviceOptions } from "../../src/main/ui/device-options";

const devices = [
  { id: "built in", label: "Built-in microphone" },
  { id: "usb", label: "" },
];

it("offers the system's default, and each device by its name or its place", () => {
  expect(deviceOptions(devices, "usb", "Default")).toEqual([
    ["", "Default"],
    ["built in", "Built-in microphone"],
    ["usb", "Device 2"],
  ]);
});

it.each([
  [devices, "The one you chose last, which is not there"],
  [[], "The one you chose last"],
])("says what was chosen and is not listed, so that anything else can be chosen", (listed, label) => {
  const options = deviceOptions(listed, "at home", "Default");
  expect(options[0]).toEqual(["", "Default"]);
  expect(options.at(-1)).toEqual(["at home", label]);
  expect(deviceOptions(listed, "", "Default")).toHaveLength(listed.length + 1);
});
