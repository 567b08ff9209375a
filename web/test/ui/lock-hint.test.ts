import { expect, it } from "vitest";
import { lockHint } from "../../src/main/ui/lock-hint";

it("shows the passphrase of a locked room, also to an owner who has just removed somebody", () => {
  const locked = { locked: true, roomPassphrase: "tallis" };
  const open = { locked: false, roomPassphrase: null };
  expect(lockHint(locked, null)).toBe("Tell the passphrase to those whom you invite: tallis");
  expect(lockHint(locked, "Bob")).toBe(
    "You removed Bob, who may know the passphrase. A new one keeps them out. Tell the passphrase to those whom you invite: tallis",
  );
  expect(lockHint(open, "Bob")).toBe(
    "You removed Bob. The link still lets them in; a passphrase keeps them out.",
  );
  expect(lockHint(open, null)).not.toContain("removed");
});
