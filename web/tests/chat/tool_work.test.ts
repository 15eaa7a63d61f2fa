import { describe, expect, test } from "vitest";
import type { CallResult, Message, OfferedTool } from "../../src/api/types";
import { type Decision, ToolWork } from "../../src/chat/tool_work";
import { message } from "./messages";

const tool = (name: string, allowed = false): OfferedTool => ({
  name,
  server: "files",
  tool: name,
  description: "",
  parameters: { type: "object" },
  allowed,
});

const calling = (...calls: [name: string, args: string][]): Message =>
  message("answer", null, {
    role: "assistant",
    calls: calls.map(([name, args], index) => ({ id: `call-${index}`, name, arguments: args })),
  });

/** Return work whose tools say what they were called with, and the calls that were made. */
function workOn(answer: Message, tools: OfferedTool[]): { work: ToolWork; made: string[] } {
  const made: string[] = [];
  const call = async ({ server, name }: OfferedTool, args: unknown): Promise<CallResult> => {
    made.push(`${server}/${name} ${JSON.stringify(args)}`);
    return { text: `${name} is done`, images: [], failed: false };
  };
  return { work: new ToolWork(answer, tools, call), made };
}

const asked = async (work: ToolWork): Promise<string[]> => {
  await new Promise((resolve) => setTimeout(resolve));
  return work.calls.value.filter(({ state }) => state === "asking").map(({ call }) => call.name);
};

describe("calls of tools", () => {
  test("each is asked about, in its turn", async () => {
    const { work, made } = workOn(calling(["read", '{"path":"a"}'], ["write", "{}"]), [
      tool("read"),
      tool("write"),
    ]);
    const results = work.results();
    expect(await asked(work)).toEqual(["read"]);
    expect(made).toEqual([]);
    work.decide("once");
    expect(await asked(work)).toEqual(["write"]);
    expect(made).toEqual(['files/read {"path":"a"}']);
    work.decide("deny");
    expect(await results).toEqual([
      { text: "read is done", images: [], failed: false },
      { text: "error: the user refused this call", images: [], failed: true },
    ]);
    expect(made).toHaveLength(1);
  });

  test("one that is allowed by name runs without a question", async () => {
    const { work, made } = workOn(calling(["list", ""]), [tool("list", true)]);
    expect((await work.results())?.[0]?.text).toBe("list is done");
    expect(made).toEqual(["files/list {}"]);
  });

  test("always holds for this tool only", async () => {
    const tools = [tool("always"), tool("never")];
    const first = workOn(calling(["always", "{}"]), tools);
    const results = first.work.results();
    await asked(first.work);
    first.work.decide("always");
    await results;
    const { work, made } = workOn(calling(["always", "{}"], ["never", "{}"]), tools);
    void work.results();
    expect(await asked(work)).toEqual(["never"]);
    expect(made).toEqual(["files/always {}"]);
  });

  test.each([
    ["unknown", "{}", "error: there is no tool 'unknown'"],
    ["read", '{"path":', "error: the arguments are not a JSON object"],
    ["read", "[1]", "error: the arguments are not a JSON object"],
  ])("%s with %s is an error that the model reads", async (name, args, text) => {
    const { work, made } = workOn(calling([name, args]), [tool("read", true)]);
    expect(await work.results()).toEqual([{ text, images: [], failed: true }]);
    expect(made).toEqual([]);
  });

  test("a call that fails is a result", async () => {
    const work = new ToolWork(calling(["list", "{}"]), [tool("list", true)], async () => {
      throw new Error("Cannot reach the server.");
    });
    expect((await work.results())?.[0]).toMatchObject({
      text: "error: Cannot reach the server.",
      failed: true,
    });
  });

  test.each<[string, Decision | null]>([
    ["while it asks", null],
    ["while it runs", "once"],
  ])("stopped %s, nothing more is called", async (_, decision) => {
    let ended = false;
    const call = (_tool: OfferedTool, _args: unknown, signal?: AbortSignal) =>
      new Promise<CallResult>((_resolve, reject) => {
        signal?.addEventListener("abort", () => {
          ended = true;
          reject(signal.reason);
        });
      });
    const work = new ToolWork(calling(["stop", "{}"], ["stop", "{}"]), [tool("stop")], call);
    const results = work.results();
    await asked(work);
    if (decision !== null) {
      work.decide(decision);
      await asked(work);
    }
    work.stop();
    expect(await results).toBeNull();
    expect(ended).toBe(decision !== null);
  });
});
