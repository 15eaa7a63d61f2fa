import { describe, expect, test } from "vitest";
import type { ChatRequest } from "../../src/api/types";
import { codeFor, DIALECTS, isSound, python } from "../../src/chat/code_export";

const OPTIONS = { base: "http://127.0.0.1:11434", keys: false };
const REQUEST: ChatRequest = {
  model: "demo",
  messages: [
    { role: "system", content: 'It\'s "brief".' },
    { role: "user", content: "Line one\nline two \u2028", images: ["A".repeat(100)] },
    {
      role: "assistant",
      content: "",
      tool_calls: [{ id: "c1", function: { name: "f", arguments: { x: true } } }],
    },
    { role: "tool", content: "2", tool_name: "f", tool_call_id: "c1" },
  ],
  tools: [{ type: "function", function: { name: "f", parameters: { type: "object" } } }],
  options: { temperature: 0, num_ctx: 4096, top_k: 5, stop: ["\n"] },
  format: { type: "object" },
  keep_alive: "5m",
  logprobs: true,
  top_logprobs: 8,
};

describe("a chat as code", () => {
  test.each(DIALECTS.map(({ name }) => [name]))("%s names the model and keeps pictures short", (dialect) => {
    const code = codeFor(dialect, REQUEST, OPTIONS);
    expect(code).toContain("demo");
    expect(code).not.toContain("A".repeat(30));
    expect(code).not.toContain("logprobs");
  });

  test("recordings are known by their first bytes and stand where each API has them", () => {
    const files = {
      wav: "RIFF....WAVEfmt ",
      flac: "fLaC.........",
      mp3: "\xff\xfb.......",
      webp: "RIFF....WEBPVP8 ",
    };
    const [wav, flac, mp3, webp] = Object.values(files).map((start) => btoa(start));
    expect([wav, flac, mp3, webp, "iVBORw0KGgo="].map((each) => isSound(each!))).toEqual([
      true,
      true,
      true,
      false,
      false,
    ]);
    const heard = { model: "demo", messages: [{ role: "user", content: "Hm?", images: [wav!, webp!] }] };
    const code = (dialect: "openai" | "anthropic" | "puna") =>
      codeFor(dialect, heard as ChatRequest, OPTIONS);
    expect(code("openai")).toContain('"type": "input_audio"');
    expect(code("openai")).toContain('"type": "image_url"');
    expect(code("anthropic")).toContain("no place for: recordings");
    expect(code("anthropic").match(/"type": "image"/g)).toHaveLength(1);
    expect(code("puna")).toMatch(/"images": \["UklGRi4uLi5XRUJQ.*"audio": \["UklGRi4uLi5XQVZF/s);
  });

  test("curl quotes apostrophes for the shell", () => {
    const code = codeFor("curl", REQUEST, OPTIONS);
    expect(code).toContain(`It'\\''s`);
    const body = /-d '([\s\S]*)'\n$/.exec(code)![1]!.replaceAll("'\\''", "'");
    expect(JSON.parse(body)).toMatchObject({ model: "demo", stream: false, options: { num_ctx: 4096 } });
  });

  test("a key is read from the environment", () => {
    for (const { name } of DIALECTS.filter((each) => each.name !== "puna")) {
      expect(codeFor(name, REQUEST, { ...OPTIONS, keys: true })).toContain("PUNA_API_KEY");
    }
  });

  test("OpenAI's gets its own names, the rest in extra_body, and says what is left out", () => {
    const code = codeFor("openai", REQUEST, OPTIONS);
    expect(code).toContain('base_url="http://127.0.0.1:11434/v1"');
    expect(code).toContain('extra_body={"top_k": 5}');
    expect(code).toContain('"arguments": "{\\"x\\":true}"');
    expect(code).toContain('"type": "json_schema"');
    expect(code).toMatch(/# Left out.*keep_alive, num_ctx/);
  });

  test("Anthropic's gets the system prompt apart, and results as blocks", () => {
    const code = codeFor("anthropic", REQUEST, OPTIONS);
    expect(code).toContain('system="It\'s \\"brief\\"."');
    expect(code).toContain('"type": "tool_result"');
    expect(code).toContain('"input_schema": {"type": "object"}');
  });

  test("puna's loads with what loading takes", () => {
    expect(codeFor("puna", REQUEST, OPTIONS)).toContain('puna.load("demo", num_ctx=4096)');
  });
});

test("values are written as Python's", () => {
  expect(python({ a: [true, false, null], b: "x\u2028" })).toBe(
    '{"a": [True, False, None], "b": "x\\u2028"}',
  );
  expect(python({ long: "x".repeat(100) })).toBe(`{\n    "long": "${"x".repeat(100)}",\n}`);
});
