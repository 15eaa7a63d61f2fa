// A chat as code that asks the same: curl, and the Python packages ollama, openai, anthropic and puna.
import type { ChatRequest, RequestMessage } from "../api/types";

export type Dialect = "curl" | "ollama" | "openai" | "anthropic" | "puna";

export const DIALECTS: readonly { name: Dialect; label: string; language: string; install: string | null }[] =
  [
    { name: "curl", label: "curl", language: "bash", install: null },
    { name: "ollama", label: "ollama", language: "python", install: "pip install ollama" },
    { name: "openai", label: "openai", language: "python", install: "pip install openai" },
    { name: "anthropic", label: "anthropic", language: "python", install: "pip install anthropic" },
    { name: "puna", label: "puna", language: "python", install: "pip install puna" },
  ];

export interface CodeOptions {
  /** Of the server, without a slash at the end. */
  base: string;
  keys: boolean;
}

/** Return code that sends a request. Pictures and recordings are shortened to their first characters. */
export function codeFor(dialect: Dialect, request: ChatRequest, options: CodeOptions): string {
  const { logprobs: _, top_logprobs: __, ...body } = request;
  const short = { ...body, messages: body.messages.map(withoutPictures) } as ChatRequest;
  switch (dialect) {
    case "curl":
      return curl(short, options);
    case "ollama":
      return ollama(short, options);
    case "openai":
      return openai(short, options);
    case "anthropic":
      return anthropic(short, options);
    case "puna":
      return puna(short);
  }
}

const withoutPictures = (message: RequestMessage): RequestMessage =>
  message.images === undefined
    ? message
    : {
        ...message,
        images: message.images.map((data) => (data.length > 24 ? `${data.slice(0, 16)}...` : data)),
      };

/** Whether a file in base64 begins as recordings do: WAV, FLAC, OGG or MP3. */
export function isSound(base64: string): boolean {
  const start = atob(base64.slice(0, 16));
  const isWav = start.startsWith("RIFF") && start.slice(8, 12) === "WAVE";
  return isWav || /^(?:fLaC|OggS|ID3|\xff[\xe0-\xff])/.test(start);
}

/** Return a value as Python writes it. */
export function python(value: unknown, indent = 0, width = 88): string {
  const flat = flatPython(value);
  if (indent + flat.length <= width || typeof value !== "object" || value === null) return flat;
  const pad = " ".repeat(indent + 4);
  const end = " ".repeat(indent);
  if (Array.isArray(value)) {
    return `[\n${value.map((each) => `${pad}${python(each, indent + 4, width)},\n`).join("")}${end}]`;
  }
  const entries = Object.entries(value).filter(([, each]) => each !== undefined);
  const lines = entries.map(([key, each]) => `${pad}${text(key)}: ${python(each, indent + 4, width)},\n`);
  return `{\n${lines.join("")}${end}}`;
}

function flatPython(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return text(value);
  if (Array.isArray(value)) return `[${value.map(flatPython).join(", ")}]`;
  if (typeof value === "object") {
    const entries = Object.entries(value).filter(([, each]) => each !== undefined);
    return `{${entries.map(([key, each]) => `${text(key)}: ${flatPython(each)}`).join(", ")}}`;
  }
  return String(value);
}

/** A text as a literal of Python: JSON's are, but for these characters, which end lines or are halves. */
const text = (value: string): string =>
  JSON.stringify(value).replace(
    /[\u007f-\u009f\u2028\u2029\ufeff]/g,
    (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** Return the arguments of a call, one a line. */
function call(name: string, values: Record<string, unknown>): string {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return `${name}(\n${given.map(([key, value]) => `    ${key}=${python(value, 4)},\n`).join("")})`;
}

const quoted = (value: string) => `'${value.replaceAll("'", `'\\''`)}'`;

function curl(request: ChatRequest, { base, keys }: CodeOptions): string {
  const key = keys ? '  -H "Authorization: Bearer $PUNA_API_KEY" \\\n' : "";
  const body = { ...request, stream: false };
  return `curl -s ${base}/api/chat \\\n${key}  -d ${quoted(JSON.stringify(body, null, 2))}\n`;
}

/** Fields of the body that the client of Ollama's API knows. */
const OLLAMA = ["model", "messages", "tools", "think", "format", "options", "keep_alive"];

function ollama(request: ChatRequest, { base, keys }: CodeOptions): string {
  const headers = keys ? ', headers={"Authorization": f"Bearer {os.environ[\'PUNA_API_KEY\']}"}' : "";
  const imports = keys ? "import os\n\nfrom ollama import Client" : "from ollama import Client";
  const known: Record<string, unknown> = {};
  const left: string[] = [];
  for (const [name, value] of Object.entries(request)) {
    if (OLLAMA.includes(name)) known[name] = value;
    else left.push(name);
  }
  const calls = `client = Client("${base}"${headers})\nfor part in client.${call("chat", { ...known, stream: true })}:\n    print(part.message.content or "", end="", flush=True)\n`;
  return `${imports}\n\n${noteOn(left, "the package has no place for")}${calls}`;
}

const noteOn = (names: string[], why: string) =>
  names.length > 0 ? `# Left out, as ${why}: ${names.join(", ")}\n` : "";

function openai(request: ChatRequest, { base, keys }: CodeOptions): string {
  const {
    model,
    messages,
    options = {},
    tools,
    format,
    think,
    keep_alive: _,
    truncate: __,
    shift: ___,
    ...fields
  } = request;
  const {
    temperature,
    top_p,
    seed,
    stop,
    num_predict,
    presence_penalty,
    frequency_penalty,
    logit_bias,
    ...rest
  } = options as Record<string, unknown>;
  const extra: Record<string, unknown> = {};
  const left: string[] = ["keep_alive", "truncate", "shift"].filter((name) => request[name] !== undefined);
  for (const [name, value] of Object.entries(rest)) {
    if (OPENAI_OPTIONS.has(name)) extra[name] = value;
    else left.push(name);
  }
  const known: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (name === "n" || name === "tool_choice" || name === "parallel_tool_calls") known[name] = value;
    else extra[name] = value;
  }
  const body: Record<string, unknown> = {
    model,
    messages: messages.map(openaiMessage),
    tools,
    ...known,
    temperature,
    top_p,
    seed,
    stop,
    max_tokens: typeof num_predict === "number" && num_predict > 0 ? num_predict : undefined,
    presence_penalty,
    frequency_penalty,
    logit_bias,
    response_format: formatOf(format),
    reasoning_effort: typeof think === "string" ? think : think === false ? "none" : undefined,
    extra_body: Object.keys(extra).length > 0 ? extra : undefined,
    stream: true,
  };
  const imports = keys ? "import os\n\nfrom openai import OpenAI" : "from openai import OpenAI";
  const key = keys ? 'os.environ["PUNA_API_KEY"]' : '"any"';
  return (
    `${imports}\n\n${noteOn(left, "OpenAI's API has no place for")}client = OpenAI(base_url="${base}/v1", api_key=${key})\n` +
    `stream = client.chat.completions.${call("create", body)}\nfor chunk in stream:\n    for choice in chunk.choices:\n` +
    `        print(choice.delta.content or "", end="", flush=True)\n`
  );
}

const OPENAI_OPTIONS = new Set([
  "top_k", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "banned_tokens", "min_tokens", "top_n_sigma",
  "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base",
  "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta",
  "engine",
]); // biome-ignore format: a list of words

function formatOf(format: unknown): unknown {
  if (format === undefined) return undefined;
  if (format === "json") return { type: "json_object" };
  return { type: "json_schema", json_schema: { name: "answer", schema: format, strict: true } };
}

function openaiMessage(message: RequestMessage): Record<string, unknown> {
  const { role, content, images, tool_calls, tool_call_id } = message;
  const result: Record<string, unknown> = { role };
  if (images === undefined) result.content = content;
  else {
    const media = images.map((data) =>
      isSound(data)
        ? { type: "input_audio", input_audio: { data, format: "wav" } }
        : { type: "image_url", image_url: { url: `data:image/png;base64,${data}` } },
    );
    result.content = [...media, { type: "text", text: content }];
  }
  if (tool_calls !== undefined) {
    result.tool_calls = tool_calls.map((each, index) => ({
      id: each.id ?? `call_${index}`,
      type: "function",
      function: { name: each.function.name, arguments: asJson(each.function.arguments) },
    }));
  }
  if (role === "tool") result.tool_call_id = tool_call_id ?? "call_0";
  return result;
}

const asJson = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));

function anthropic(request: ChatRequest, { base, keys }: CodeOptions): string {
  const { model, messages, options = {}, tools, think } = request;
  const { temperature, top_p, top_k, stop, num_predict, ...rest } = options as Record<string, unknown>;
  const left = Object.keys(rest);
  for (const name of Object.keys(request)) {
    if (!["model", "messages", "options", "tools", "think"].includes(name)) left.push(name);
  }
  if (messages.some((message) => message.images?.some(isSound))) left.push("recordings");
  const system = messages.filter((message) => message.role === "system").map((message) => message.content);
  // Newer versions of the package have no arguments for these.
  const sampling = Object.entries({ temperature, top_p, top_k }).filter(([, value]) => value !== undefined);
  const body: Record<string, unknown> = {
    model,
    max_tokens: typeof num_predict === "number" && num_predict > 0 ? num_predict : 4096,
    system: system.length > 0 ? system.join("\n\n") : undefined,
    messages: messages.filter((message) => message.role !== "system").map(anthropicMessage),
    tools: tools?.map(anthropicTool),
    stop_sequences: stop,
    thinking: think === undefined || think === false ? undefined : { type: "enabled", budget_tokens: 1024 },
    extra_body: sampling.length > 0 ? Object.fromEntries(sampling) : undefined,
  };
  const imports = keys ? "import os\n\nfrom anthropic import Anthropic" : "from anthropic import Anthropic";
  const key = keys ? 'os.environ["PUNA_API_KEY"]' : '"any"';
  return (
    `${imports}\n\n${noteOn(left, "Anthropic's API has no place for")}client = Anthropic(base_url="${base}", api_key=${key})\n` +
    `with client.messages.${call("stream", body)} as stream:\n    for text in stream.text_stream:\n` +
    `        print(text, end="", flush=True)\n`
  );
}

function anthropicMessage(message: RequestMessage): Record<string, unknown> {
  const { role, content, images, tool_calls, tool_call_id } = message;
  if (role === "tool") {
    return {
      role: "user",
      content: [{ type: "tool_result", tool_use_id: tool_call_id ?? "call_0", content }],
    };
  }
  if (images === undefined && tool_calls === undefined) return { role, content };
  const pictures = (images ?? []).filter((data) => !isSound(data));
  const parts: unknown[] = pictures.map((data) => ({
    type: "image",
    source: { type: "base64", media_type: "image/png", data },
  }));
  if (content !== "") parts.push({ type: "text", text: content });
  for (const [index, each] of (tool_calls ?? []).entries()) {
    const { name, arguments: input } = each.function;
    parts.push({ type: "tool_use", id: each.id ?? `call_${index}`, name, input });
  }
  return { role, content: parts };
}

function anthropicTool(tool: unknown): unknown {
  const { function: given } = tool as {
    function?: { name?: string; description?: string; parameters?: unknown };
  };
  return {
    name: given?.name,
    description: given?.description,
    input_schema: given?.parameters ?? { type: "object", properties: {} },
  };
}

/** Options that are set when the library loads a model. */
const LOADING = [
  "num_ctx",
  "num_thread",
  "draft",
  "engine",
  "num_gpu",
  "main_gpu",
  "tensor_split",
  "use_mmap",
];

function puna(request: ChatRequest): string {
  const { model, messages, options = {}, tools, think, format } = request;
  const left = Object.keys(request).filter(
    (name) =>
      ![
        "model",
        "messages",
        "options",
        "tools",
        "think",
        "format",
        "grammar",
        "guided_regex",
        "guided_choice",
      ].includes(name),
  );
  const loading: Record<string, unknown> = {};
  const sampling: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    if (name === "num_batch" || name === "replicas") left.push(name);
    else if (LOADING.includes(name)) loading[name] = value;
    else sampling[name] = value;
  }
  const load = Object.entries(loading).map(([name, value]) => `, ${name}=${python(value)}`);
  const lines = [`messages = ${python(messages.map(withAudio))}`];
  const values = [
    "messages",
    ...Object.entries({ tools, think }).flatMap(([name, value]) =>
      value === undefined ? [] : [`${name}=${name}`],
    ),
  ];
  if (tools !== undefined) lines.push(`tools = ${python(tools)}`);
  if (think !== undefined) lines.push(`think = ${python(think)}`);
  const shape = punaFormat(request);
  if (shape !== null) {
    lines.push(`format = ${shape}`);
    values.push("format=format");
  } else if (format !== undefined) {
    lines.push(`format = ${python(format)}`);
    values.push("format=format");
  }
  for (const [name, value] of Object.entries(sampling)) values.push(`${name}=${python(value)}`);
  return (
    `import puna\n\n${noteOn(left, "they are fields of the server")}${lines.join("\n")}\n` +
    `with puna.load(${python(model)}${load.join("")}) as model:\n    print(model.chat(${values.join(", ")}))\n`
  );
}

/** Return a message for the library, which has a place for recordings. */
function withAudio(message: RequestMessage): Record<string, unknown> {
  const { images, ...rest } = message;
  const [audio, pictures] = [(images ?? []).filter(isSound), (images ?? []).filter((data) => !isSound(data))];
  return {
    ...rest,
    ...(pictures.length > 0 ? { images: pictures } : {}),
    ...(audio.length > 0 ? { audio } : {}),
  };
}

function punaFormat(request: ChatRequest): string | null {
  if (request.grammar !== undefined) return `puna.Format.grammar(${python(request.grammar)})`;
  if (request.guided_regex !== undefined) return `puna.Format.regex(${python(request.guided_regex)})`;
  if (request.guided_choice !== undefined) return `puna.Format.choice(${python(request.guided_choice)})`;
  return null;
}
