// Every option of /api/chat with its meaning and default, as docs/api.md and docs/compatibility.md have them.

export type OptionGroup =
  | "Length"
  | "Sampling"
  | "Repetition"
  | "More sampling"
  | "Speed and memory"
  | "Request";

export interface Option {
  name: string;
  label: string;
  meaning: string;
  /** What holds without it, in words. */
  initial: string;
  group: OptionGroup;
  kind: "number" | "whole" | "switch" | "text" | "texts" | "json" | "choice";
  least?: number;
  most?: number;
  choices?: string[];
  /** Whether it is a field of the request instead of an option. */
  isField?: boolean;
  /** Shown before "More options" is opened. */
  common?: boolean;
}

const BIG = 2 ** 31 - 1;

export const OPTIONS: readonly Option[] = [
  // Length
  {
    name: "num_ctx",
    label: "Context length",
    meaning: "Tokens of prompt and answer together. A longer one takes more memory.",
    initial: "automatic",
    group: "Length",
    kind: "whole",
    least: 1,
    most: BIG,
    common: true,
  },
  {
    name: "num_predict",
    label: "Longest answer",
    meaning: "Tokens after which the answer is cut; -1: up to ten contexts, -2: until the context is full.",
    initial: "-1",
    group: "Length",
    kind: "whole",
    least: -2,
    most: BIG,
    common: true,
  },
  {
    name: "min_tokens",
    label: "Shortest answer",
    meaning: "The model cannot end before this many tokens.",
    initial: "0",
    group: "Length",
    kind: "whole",
    least: 0,
    most: BIG,
  },
  {
    name: "stop",
    label: "Stop at",
    meaning: "Texts that end the answer and are left out of it, one a line.",
    initial: "as the model says",
    group: "Length",
    kind: "texts",
    common: true,
  },
  {
    name: "num_keep",
    label: "Kept at the beginning",
    meaning:
      "Tokens at the beginning of the prompt that stay when a full context makes room; -1: all of the prompt.",
    initial: "4",
    group: "Length",
    kind: "whole",
    least: -1,
    most: BIG,
  },
  {
    name: "ignore_eos",
    label: "Go on after the end",
    meaning: "The answer goes on after the model's end token, to an exact length.",
    initial: "off",
    group: "Length",
    kind: "switch",
    isField: true,
  },
  // Sampling
  {
    name: "temperature",
    label: "Temperature",
    meaning: "0 always takes the likeliest token; higher values vary more.",
    initial: "0.8",
    group: "Sampling",
    kind: "number",
    least: 0,
    most: 100,
    common: true,
  },
  {
    name: "top_p",
    label: "Top p",
    meaning: "Keeps the likeliest tokens that together have this probability.",
    initial: "0.9",
    group: "Sampling",
    kind: "number",
    least: 0,
    most: 1,
    common: true,
  },
  {
    name: "top_k",
    label: "Top k",
    meaning: "Keeps this many of the likeliest tokens; 0 or -1: all.",
    initial: "40",
    group: "Sampling",
    kind: "whole",
    least: -1,
    most: BIG,
    common: true,
  },
  {
    name: "min_p",
    label: "Min p",
    meaning: "Keeps tokens with at least this share of the likeliest one's probability.",
    initial: "0",
    group: "Sampling",
    kind: "number",
    least: 0,
    most: 1,
    common: true,
  },
  {
    name: "seed",
    label: "Seed",
    meaning: "The same seed gives the same answer to the same request; -1: another one each time.",
    initial: "-1",
    group: "Sampling",
    kind: "whole",
    least: -Number.MAX_SAFE_INTEGER,
    most: Number.MAX_SAFE_INTEGER,
    common: true,
  },
  // Repetition
  {
    name: "repeat_penalty",
    label: "Repeat penalty",
    meaning: "Makes tokens that came before less likely; 1: off.",
    initial: "1",
    group: "Repetition",
    kind: "number",
    least: 0.001,
    most: 100,
    common: true,
  },
  {
    name: "repeat_last_n",
    label: "Penalty looks back",
    meaning: "Tokens that the penalties look back over; 0: none, -1: the whole context.",
    initial: "64",
    group: "Repetition",
    kind: "whole",
    least: -1,
    most: BIG,
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    meaning: "Lowers the logit of every token that came before, however often.",
    initial: "0",
    group: "Repetition",
    kind: "number",
    least: -100,
    most: 100,
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    meaning: "Lowers the logit of a token for each time that it came before.",
    initial: "0",
    group: "Repetition",
    kind: "number",
    least: -100,
    most: 100,
  },
  {
    name: "dry_multiplier",
    label: "DRY multiplier",
    meaning:
      "Lowers the logit of a token that continues a repetition, by multiplier × base^(length − allowed); 0: off.",
    initial: "0",
    group: "Repetition",
    kind: "number",
    least: 0,
    most: 100,
  },
  {
    name: "dry_base",
    label: "DRY base",
    meaning: "How steeply DRY grows with the length of a repetition.",
    initial: "1.75",
    group: "Repetition",
    kind: "number",
    least: 1,
    most: 100,
  },
  {
    name: "dry_allowed_length",
    label: "DRY allowed length",
    meaning: "Repetitions of up to this many tokens are left alone.",
    initial: "2",
    group: "Repetition",
    kind: "whole",
    least: 1,
    most: BIG,
  },
  {
    name: "dry_penalty_last_n",
    label: "DRY looks back",
    meaning: "Tokens in which DRY looks for repetitions; -1: all.",
    initial: "-1",
    group: "Repetition",
    kind: "whole",
    least: -1,
    most: BIG,
  },
  {
    name: "dry_sequence_breakers",
    label: "DRY breakers",
    meaning: "Texts across which nothing counts as a repetition, one a line (\\n is a new line).",
    initial: 'new line, :, ", *',
    group: "Repetition",
    kind: "texts",
  },
  // More sampling
  {
    name: "typical_p",
    label: "Typical p",
    meaning: "Keeps tokens whose surprise is near the expected one, up to this probability; 1: off.",
    initial: "1",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 1,
  },
  {
    name: "top_n_sigma",
    label: "Top n sigma",
    meaning:
      "Keeps tokens whose logit is at most this many standard deviations below the largest; 0 or less: off.",
    initial: "-1",
    group: "More sampling",
    kind: "number",
    least: -1,
    most: 1000,
  },
  {
    name: "xtc_probability",
    label: "XTC probability",
    meaning: "How often all tokens above the threshold but the least likely of them are left out.",
    initial: "0",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 1,
  },
  {
    name: "xtc_threshold",
    label: "XTC threshold",
    meaning: "The probability above which XTC leaves tokens out.",
    initial: "0.1",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 1,
  },
  {
    name: "dynatemp_range",
    label: "Dynamic temperature",
    meaning: "The temperature moves by up to this much with the entropy of the candidates; 0: off.",
    initial: "0",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 100,
  },
  {
    name: "dynatemp_exponent",
    label: "Dynamic exponent",
    meaning: "How the dynamic temperature follows the entropy.",
    initial: "1",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 100,
  },
  {
    name: "mirostat",
    label: "Mirostat",
    meaning:
      "1 or 2: keeps the surprise of the text near tau, instead of top k, typical p, top p, min p and XTC.",
    initial: "0",
    group: "More sampling",
    kind: "whole",
    least: 0,
    most: 2,
  },
  {
    name: "mirostat_tau",
    label: "Mirostat tau",
    meaning: "The surprise that Mirostat aims at, in bits.",
    initial: "5",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 100,
  },
  {
    name: "mirostat_eta",
    label: "Mirostat eta",
    meaning: "How fast Mirostat corrects itself.",
    initial: "0.1",
    group: "More sampling",
    kind: "number",
    least: 0,
    most: 1,
  },
  {
    name: "logit_bias",
    label: "Logit bias",
    meaning: 'What is added to the logits of tokens, -100 to 100: {"1234": -100} rules token 1234 out.',
    initial: "none",
    group: "More sampling",
    kind: "json",
  },
  {
    name: "banned_tokens",
    label: "Banned tokens",
    meaning: "Ids of tokens that are never drawn: [12, 34].",
    initial: "none",
    group: "More sampling",
    kind: "json",
  },
  {
    name: "sampled_logprobs",
    label: "Probabilities after sampling",
    meaning: "“Look inside” shows the probabilities after all options, instead of the model's own.",
    initial: "off",
    group: "More sampling",
    kind: "switch",
    isField: true,
  },
  // Speed and memory
  {
    name: "speculate",
    label: "Speculation",
    meaning: "How tokens are drafted ahead; the answer stays the same.",
    initial: "automatic",
    group: "Speed and memory",
    kind: "choice",
    choices: ["off", "prompt", "draft", "mtp"],
  },
  {
    name: "draft",
    label: "Draft model",
    meaning: "A small model of the same family that drafts tokens.",
    initial: "as the model says",
    group: "Speed and memory",
    kind: "text",
  },
  {
    name: "num_batch",
    label: "Batch size",
    meaning: "Tokens of a prompt in one step. Another value loads the model again.",
    initial: "512",
    group: "Speed and memory",
    kind: "whole",
    least: 1,
    most: 2 ** 20,
  },
  {
    name: "num_thread",
    label: "Threads",
    meaning: "Threads that compute; 0: automatic. Another value loads the model again.",
    initial: "0",
    group: "Speed and memory",
    kind: "whole",
    least: 0,
    most: 4096,
  },
  {
    name: "engine",
    label: "Engine",
    meaning: "What runs the model: Puna's own engine, llama.cpp, or whichever can.",
    initial: "automatic",
    group: "Speed and memory",
    kind: "choice",
    choices: ["auto", "puna", "llamacpp"],
  },
  {
    name: "num_gpu",
    label: "Layers on the GPU",
    meaning: "Layers on GPUs, at most; -1: as many as fit.",
    initial: "-1",
    group: "Speed and memory",
    kind: "whole",
    least: -(2 ** 31),
    most: BIG,
  },
  {
    name: "main_gpu",
    label: "Main GPU",
    meaning: "The GPU that is used first.",
    initial: "0",
    group: "Speed and memory",
    kind: "whole",
    least: 0,
    most: 15,
  },
  {
    name: "tensor_split",
    label: "Split over GPUs",
    meaning: "The share of layers of each GPU: [3, 1].",
    initial: "none",
    group: "Speed and memory",
    kind: "json",
  },
  {
    name: "replicas",
    label: "Replicas",
    meaning:
      "In a cluster: at least and at most so many replicas: [1, 4]. Without a maximum (0), one on each node.",
    initial: "none",
    group: "Speed and memory",
    kind: "json",
  },
  {
    name: "use_mmap",
    label: "Weights stay in the file",
    meaning: "For llama.cpp: leaves weights in the mapped file instead of reading them.",
    initial: "on",
    group: "Speed and memory",
    kind: "switch",
  },
  // Request
  {
    name: "keep_alive",
    label: "Keep loaded",
    meaning: 'How long the model stays in memory afterwards: "10m", "24h", 0 or -1 (always).',
    initial: "5m, or as the server says",
    group: "Request",
    kind: "text",
    isField: true,
  },
  {
    name: "truncate",
    label: "Cut long chats",
    meaning: "Leaves out the oldest messages of a chat that does not fit; otherwise it is refused.",
    initial: "on",
    group: "Request",
    kind: "switch",
    isField: true,
  },
  {
    name: "shift",
    label: "Go on in a full context",
    meaning: "Drops old tokens when the context is full during the answer; otherwise it ends there.",
    initial: "on",
    group: "Request",
    kind: "switch",
    isField: true,
  },
  {
    name: "cache_prompt",
    label: "Use the cache",
    meaning: "Off evaluates the whole prompt, and keeps nothing for later requests.",
    initial: "on",
    group: "Request",
    kind: "switch",
    isField: true,
  },
  {
    name: "priority",
    label: "Priority",
    meaning: "“batch” only uses what interactive requests leave free.",
    initial: "interactive",
    group: "Request",
    kind: "choice",
    choices: ["interactive", "batch"],
    isField: true,
  },
  {
    name: "tool_choice",
    label: "Tool choice",
    meaning: "“required” makes the answer a call, “none” forbids calls; also the name of a tool.",
    initial: "auto",
    group: "Request",
    kind: "text",
    isField: true,
  },
  {
    name: "parallel_tool_calls",
    label: "Several calls",
    meaning: "Whether an answer may call several tools.",
    initial: "on",
    group: "Request",
    kind: "switch",
    isField: true,
  },
  {
    name: "strict_tools",
    label: "Strict tools",
    meaning: "Every call is valid by construction.",
    initial: "off",
    group: "Request",
    kind: "switch",
    isField: true,
  },
  {
    name: "lora",
    label: "Adapters",
    meaning: 'Which adapters of the model count, and how much: [{"name": "legal", "scale": 0.5}].',
    initial: "those it was made with",
    group: "Request",
    kind: "json",
    isField: true,
  },
  {
    name: "documents",
    label: "Documents",
    meaning: "Texts for models whose template has a place for documents: a list of texts or objects.",
    initial: "none",
    group: "Request",
    kind: "json",
    isField: true,
  },
];

export const GROUPS: readonly OptionGroup[] = [
  "Sampling",
  "Length",
  "Repetition",
  "More sampling",
  "Speed and memory",
  "Request",
];

/** Return how a value of an option is typed. */
export function typed(option: Option, value: unknown): string {
  if (value === undefined) return "";
  if (option.kind === "texts" && Array.isArray(value)) {
    return value.map((each) => String(each).replaceAll("\\", "\\\\").replaceAll("\n", "\\n")).join("\n");
  }
  if (option.kind === "json") return JSON.stringify(value);
  return String(value);
}

/** Read what was typed: undefined for nothing, or what is wrong with it. */
export function readOption(option: Option, text: string): { value: unknown } | { problem: string } {
  const clear = text.trim();
  if (clear === "") return { value: undefined };
  switch (option.kind) {
    case "number":
    case "whole": {
      const value = Number(clear);
      const { least = -Infinity, most = Infinity } = option;
      if (!Number.isFinite(value)) return { problem: "It must be a number." };
      if (option.kind === "whole" && !Number.isInteger(value))
        return { problem: "It must be a whole number." };
      if (value < least || value > most) {
        if (most >= BIG) return { problem: `It must be at least ${least}.` };
        return { problem: `It must be from ${least} to ${most}.` };
      }
      return { value };
    }
    case "texts": {
      const unescaped = (line: string) =>
        line.replace(/\\([\\nt])/g, (_, sign: string) => (sign === "n" ? "\n" : sign === "t" ? "\t" : "\\"));
      return {
        value: text
          .split("\n")
          .filter((line) => line !== "")
          .map(unescaped),
      };
    }
    case "json":
      try {
        return { value: JSON.parse(clear) as unknown };
      } catch {
        return { problem: "It must be JSON." };
      }
    case "text":
      if (option.name === "keep_alive" && /^-?\d+$/.test(clear)) return { value: Number(clear) };
      return { value: clear };
    default:
      return { value: clear };
  }
}
