import { describe, expect, test } from "vitest";
import { kept, NO_SETTINGS, presetOf, settingsOf, withPreset } from "../../src/chat/chat_settings";
import { type FileContent, requestFor } from "../../src/chat/request";
import { message } from "./messages";

const settings = { ...NO_SETTINGS, model: "demo" };
const none = new Map<string, FileContent>();

describe("the request for an answer", () => {
  test("has the branch, and nothing that was not chosen", () => {
    const path = [message("q", null, { content: "Hi" })];
    expect(requestFor(settings, path, none)).toEqual({
      model: "demo",
      messages: [{ role: "user", content: "Hi" }],
    });
  });

  test("has the system prompt, options, fields, format, tools, thinking and samples", () => {
    const tools = [{ type: "function", function: { name: "f" } }];
    const request = requestFor(
      {
        ...settings,
        system: "Be brief.",
        options: { temperature: 0 },
        fields: { keep_alive: "1h" },
        format: { kind: "schema", text: '{"type":"object"}' },
        think: "low",
        tools: JSON.stringify(tools),
        answers: 3,
      },
      [message("q", null, { content: "Hi" })],
      none,
      { logprobs: true },
    );
    expect(request).toEqual({
      model: "demo",
      messages: [
        { role: "system", content: "Be brief." },
        { role: "user", content: "Hi" },
      ],
      options: { temperature: 0 },
      keep_alive: "1h",
      format: { type: "object" },
      think: "low",
      tools,
      n: 3,
      logprobs: true,
      top_logprobs: 8,
    });
  });

  test("puts text files before the words, between fences longer than theirs, and pictures beside them", () => {
    const files = [
      { id: "t", name: "a.md", type: "text/plain", size: 1 },
      { id: "p", name: "b.png", type: "image/png", size: 1 },
    ];
    const contents = new Map<string, FileContent>([
      ["t", { kind: "text", text: "```\nx\n```\n" }],
      ["p", { kind: "media", base64: "AAAA" }],
    ]);
    const [sent] = requestFor(settings, [message("q", null, { content: "Look", files })], contents).messages;
    expect(sent).toEqual({
      role: "user",
      content: "a.md:\n````\n```\nx\n```\n````\n\nLook",
      images: ["AAAA"],
    });
  });

  test("gives calls back as objects, and results with what they answer", () => {
    const path = [
      message("q", null),
      message("a", "q", {
        role: "assistant",
        content: "",
        calls: [{ id: "1", name: "f", arguments: '{"x":1}' }],
      }),
      message("t", "a", { role: "tool", content: "2", tool_name: "f", tool_call_id: "1" }),
    ];
    expect(requestFor(settings, path, none).messages.slice(1)).toEqual([
      {
        role: "assistant",
        content: "",
        tool_calls: [{ id: "1", function: { name: "f", arguments: { x: 1 } } }],
      },
      { role: "tool", content: "2", tool_name: "f", tool_call_id: "1" },
    ]);
  });

  test("ends with the beginning of an answer that goes on, and then has one sample", () => {
    const request = requestFor({ ...settings, answers: 4 }, [message("q", null)], none, {
      prefix: { thinking: "Hm", content: "It was" },
    });
    expect(request.messages.at(-1)).toEqual({ role: "assistant", content: "It was", thinking: "Hm" });
    expect(request.n).toBeUndefined();
  });

  test("leaves out answers that are empty", () => {
    const path = [
      message("q", null),
      message("a", "q", { role: "assistant", content: "" }),
      message("r", "a"),
    ];
    expect(requestFor(settings, path, none).messages.map((each) => each.role)).toEqual(["user", "user"]);
  });

  test("is refused while the format does not parse, and says where", () => {
    const wrong = { ...settings, format: { kind: "schema" as const, text: '{\n  "type": oops\n}' } };
    expect(() => requestFor(wrong, [], none)).toThrow(/format is not valid: .*line 2/);
  });

  test("is refused while a file is missing", () => {
    const files = [{ id: "t", name: "a.md", type: "text/plain", size: 1 }];
    expect(() => requestFor(settings, [message("q", null, { files })], none)).toThrow(/a\.md is gone/);
  });
});

describe("the settings of a chat", () => {
  test("are kept where they differ from none, and read back", () => {
    const changed = { ...settings, think: false as const, options: { seed: 1 }, sideBySide: ["a"] };
    expect(kept(changed)).toEqual({ model: "demo", think: false, options: { seed: 1 }, sideBySide: ["a"] });
    expect(settingsOf(kept(changed))).toEqual(changed);
  });

  test("that make no sense are as if they were not there", () => {
    const odd = {
      model: 1,
      options: [],
      format: { kind: "x" },
      think: "much",
      answers: -4,
      sideBySide: [1, "a"],
      tools: null,
    };
    expect(settingsOf(odd as never)).toEqual({ ...NO_SETTINGS, sideBySide: ["a"] });
  });

  test("of a preset replace all but what belongs to the chat", () => {
    const preset = presetOf({ ...settings, system: "Be brief.", sideBySide: ["a"], beside: "b" });
    expect(preset).toEqual({ model: "demo", system: "Be brief." });
    const next = withPreset(
      { ...NO_SETTINGS, model: "other", options: { seed: 1 }, sideBySide: ["x"] },
      preset,
    );
    expect(next).toMatchObject({ model: "demo", system: "Be brief.", options: {}, sideBySide: ["x"] });
  });
});
