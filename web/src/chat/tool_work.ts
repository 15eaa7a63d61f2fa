// The work on an answer's calls of tools, one after the other: asked about, called, their results collected.
import { type ReadonlySignal, signal } from "@preact/signals";
import { callTool } from "../api/mcp";
import type { Call, CallResult, Message, OfferedTool } from "../api/types";

export type Decision = "once" | "always" | "deny";

export interface CallState {
  call: Call;
  /** The tool that the model means; null if there is none. */
  tool: OfferedTool | null;
  state: "waiting" | "asking" | "running" | "done";
}

/** Tools that are called without a question until the page is closed, as `server/tool`. */
const always = new Set<string>();

export const pathOfTool = ({ server, tool }: OfferedTool): string => `${server}/${tool}`;

const failure = (text: string): CallResult => ({ text: `error: ${text}`, images: [], failed: true });

export class ToolWork {
  private readonly changing = signal<readonly CallState[]>([]);
  private readonly ending = new AbortController();
  private decided: ((decision: Decision) => void) | null = null;

  constructor(
    readonly message: Message,
    offered: readonly OfferedTool[],
    private readonly call: typeof callTool = callTool,
  ) {
    this.changing.value = message.calls.map((each) => ({
      call: each,
      tool: offered.find(({ name }) => name === each.name) ?? null,
      state: "waiting",
    }));
  }

  get calls(): ReadonlySignal<readonly CallState[]> {
    return this.changing;
  }

  /** Answer the question about the call that waits for one. */
  decide(decision: Decision): void {
    this.decided?.(decision);
  }

  /** End the call under way, and all work. */
  stop(): void {
    this.ending.abort();
  }

  /** Return the results of all calls, in their order; null once it is stopped. */
  async results(): Promise<CallResult[] | null> {
    const results: CallResult[] = [];
    for (const [index, { call, tool }] of this.changing.peek().entries()) {
      const result = await this.resultOf(index, call, tool);
      if (result === null || this.ending.signal.aborted) return null;
      results.push(result);
      this.set(index, "done");
    }
    return results;
  }

  private async resultOf(index: number, call: Call, tool: OfferedTool | null): Promise<CallResult | null> {
    if (tool === null) return failure(`there is no tool '${call.name}'`);
    const args = objectIn(call.arguments);
    if (args === null) return failure("the arguments are not a JSON object");
    if (!tool.allowed && !always.has(pathOfTool(tool))) {
      this.set(index, "asking");
      const decision = await this.decision();
      if (decision === null) return null;
      if (decision === "deny") return failure("the user refused this call");
      if (decision === "always") always.add(pathOfTool(tool));
    }
    this.set(index, "running");
    try {
      return await this.call(tool, args, this.ending.signal);
    } catch (error) {
      if (this.ending.signal.aborted) return null;
      return failure(error instanceof Error ? error.message : String(error));
    }
  }

  private decision(): Promise<Decision | null> {
    const { signal } = this.ending;
    return new Promise((resolve) => {
      this.decided = resolve;
      if (signal.aborted) resolve(null);
      signal.addEventListener("abort", () => resolve(null), { once: true });
    });
  }

  private set(index: number, state: CallState["state"]): void {
    this.changing.value = this.changing.peek().map((each, at) => (at === index ? { ...each, state } : each));
  }
}

function objectIn(json: string): object | null {
  try {
    const value = JSON.parse(json || "{}") as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
