import { expect, test } from "vitest";
import { fileName } from "../../src/ui/save_file";

test.each([
  ["Why is the sky blue?", "Why is the sky blue.md"],
  ["../../etc/passwd", "etc passwd.md"],
  ["a\u202egnp.exe", "a gnp.exe.md"],
  ["...", "chat.md"],
  ["", "chat.md"],
  ["🦙".repeat(100), `${"🦙".repeat(80)}.md`],
])("%j is saved as %j", (title, name) => expect(fileName(title, "md")).toBe(name));
