// What the server's routes take and give. /api/puna first, then the parts of Ollama's API that the page uses.

export type Scope = "generate" | "read" | "manage";

export interface Me {
  version: string;
  /** Whether the server asks for keys. */
  keys: boolean;
  name: string | null;
  scopes: Scope[];
  /** Whether chats are kept on the server. */
  history: boolean;
  /** Whether the caller may call tools of MCP servers. */
  mcp: boolean;
  /** Where the server is mounted, if a proxy put it below a path. */
  root?: string;
}

// Tools

export interface ToolServer {
  name: string;
  transport: string;
  place: string;
}

/** A tool that a model is offered as `name`; `allowed` calls need no confirmation. */
export interface OfferedTool {
  name: string;
  server: string;
  tool: string;
  description: string;
  parameters: unknown;
  allowed: boolean;
}

export interface OfferedTools {
  tools: OfferedTool[];
  /** Sentences about tools that are left out. */
  warnings: string[];
}

/** What a call gave: a text, and image files in base64. */
export interface CallResult {
  text: string;
  images: string[];
  failed: boolean;
}

// Chats

export type Role = "system" | "user" | "assistant" | "tool";
export type MessageState = "done" | "running" | "stopped" | "failed";

export interface ChatHead {
  id: string;
  title: string;
  /** Whether somebody chose the title; otherwise it is the beginning of the first question. */
  titled: boolean;
  /** Seconds since 1970. */
  created: number;
  updated: number;
  pinned: boolean;
  folder: string;
  tags: string[];
  model: string;
}

export interface SnippetPart {
  text: string;
  hit: boolean;
}

export interface ChatEntry extends ChatHead {
  snippet?: SnippetPart[] | null;
}

export interface Counted {
  name: string;
  count: number;
}

export interface ChatPage {
  chats: ChatEntry[];
  cursor: string | null;
  folders: Counted[];
  tags: Counted[];
}

export interface FileRef {
  id: string;
  name: string;
  type: string;
  size: number;
}

export interface Call {
  id: string;
  name: string;
  /** JSON. */
  arguments: string;
}

export interface RunStats {
  prompt_tokens: number;
  cached: number;
  tokens: number;
  thought_tokens: number;
  prompt_s: number;
  eval_s: number;
  load_s: number;
  total_s: number;
  first_token_s: number;
  drafted: number;
  accepted: number;
  drafted_by: string;
  truncated: number;
  shifted: number;
  context: number;
  num_ctx: number;
}

export interface Message {
  id: string;
  parent: string | null;
  role: Role;
  content: string;
  thinking: string;
  calls: Call[];
  tool_name: string;
  tool_call_id: string;
  files: FileRef[];
  created: number;
  model: string;
  /** The warnings of the answer may be among them. */
  stats: (Partial<RunStats> & { reason?: string; warnings?: string[] }) | null;
  error: string | null;
  state: MessageState;
}

/** What the page keeps with a chat; the server does not look at it. */
export type ChatSettings = Record<string, unknown>;

export interface Chat extends ChatHead {
  settings: ChatSettings;
  /** The end of the path that is shown. */
  leaf: string | null;
  messages: Message[];
}

export interface NewChat {
  title?: string;
  folder?: string;
  tags?: string[];
  settings?: ChatSettings;
}

export interface ChatChange extends NewChat {
  pinned?: boolean;
  leaf?: string | null;
}

export interface NewMessage {
  parent: string | null;
  role: Role;
  content: string;
  thinking?: string;
  calls?: Call[];
  tool_name?: string;
  tool_call_id?: string;
  files?: FileRef[];
}

export interface ChatQuery {
  query?: string;
  folder?: string;
  tag?: string;
  cursor?: string;
  limit?: number;
}

export interface ImportReport {
  imported: number;
  skipped: { title: string; reason: string }[];
}

export type Preset = Record<string, unknown>;

// Runs

export interface RequestMessage {
  role: Role;
  content: string;
  thinking?: string;
  /** Base64. */
  images?: string[];
  tool_calls?: { id?: string; function: { name: string; arguments: unknown } }[];
  tool_name?: string;
  tool_call_id?: string;
}

/** A body of /api/chat with Puna's own fields. */
export interface ChatRequest {
  model: string;
  messages: RequestMessage[];
  tools?: unknown[];
  tool_choice?: unknown;
  format?: unknown;
  grammar?: string;
  options?: Record<string, unknown>;
  think?: boolean | string;
  keep_alive?: string | number;
  logprobs?: boolean;
  top_logprobs?: number;
  n?: number;
  [field: string]: unknown;
}

export interface NewRun {
  chat?: string;
  parent?: string | null;
  title?: boolean;
  prefix?: { thinking?: string; content?: string };
  request: ChatRequest;
}

export interface StartedRun {
  id: string;
  chat: string | null;
  messages: string[] | null;
}

export interface RunHead {
  id: string;
  chat: string | null;
  messages: string[] | null;
  model: string;
  state: string;
  started: number;
}

export interface TopLogprob {
  token: string;
  logprob: number;
  bytes: number[] | null;
}

export interface TokenLogprob extends TopLogprob {
  top: TopLogprob[];
}

export interface CallPart {
  index: number;
  id?: string;
  name?: string;
  arguments?: string;
}

export interface SampleSnapshot {
  thinking: string;
  text: string;
  calls: Call[];
  logprobs: TokenLogprob[];
  done: { sample: number; reason: string; stats: RunStats; warnings: string[] } | null;
}

export interface RunStart {
  id: string;
  chat: string | null;
  model: string;
  /** Those that the answers become, if they are kept. */
  messages: string[] | null;
  samples: number;
  created: number;
}

export type RunEvent =
  | ({ event: "start" } & RunStart)
  | { event: "load"; done: number; total: number }
  | { event: "prompt"; done: number; total: number; cached: number }
  | {
      event: "delta";
      sample: number;
      thinking?: string;
      text?: string;
      calls?: CallPart[];
      logprobs?: TokenLogprob[];
    }
  | { event: "done"; sample: number; reason: string; stats: RunStats; warnings: string[] }
  | { event: "title"; title: string }
  | { event: "error"; message: string; status: number; sample?: number }
  | { event: "snapshot"; start: RunStart; samples: SampleSnapshot[] }
  | { event: "end"; state: MessageState };

// Memory and the engine

export interface MemoryRow {
  name: string;
  device: string;
  weights: number;
  cache: number;
}

export interface MemoryPlan {
  context: number;
  parallel: number;
  rows: MemoryRow[];
  total: number;
  available: number;
  fits: boolean;
}

export interface LiveRequest {
  id: string;
  model: string;
  client: string | null;
  state: string;
  duration_s: number;
  tokens: number;
  tokens_per_second: number;
}

/** Sums since the model was loaded; times in seconds. */
export interface LiveSteps {
  steps: number;
  prompt_s: number;
  decode_s: number;
  sample_s: number;
  /** Waiting for the tokens that formats allow. */
  mask_s: number;
  draft_s: number;
  image_s: number;
  other_s: number;
  /** Evaluated; `cached_tokens` were reused instead. */
  prompt_tokens: number;
  cached_tokens: number;
  /** Generated. */
  tokens: number;
  drafted: number;
  accepted: number;
}

export interface LiveSequence {
  /** Of the cache; -1 while it waits. */
  row: number;
  /** "idle" is what a finished request left in the prefix cache. */
  state: "running" | "held" | "waiting" | "idle";
  /** In the cache. */
  tokens: number;
  request: number;
  client: string;
  embeds: boolean;
  prompt: number;
  cached: number;
  generated: number;
  /** Seconds since it first ran. */
  age_s: number;
}

export interface LiveCache {
  kind: string;
  layers: number[];
  /** Cells, as `used` and `shared`. */
  capacity: number;
  provided_bytes: number;
  used: number;
  shared: number;
  /** Row of a sequence, first cell, number of cells, position of the first. */
  runs: [row: number, first: number, count: number, position: number][];
}

export interface LivePrefix {
  /** Index of the node above; -1: none. Parents come first. */
  parent: number;
  /** Inputs [begin, end) that all sequences below share. */
  begin: number;
  end: number;
  hits: number;
  /** Sequences that end here. */
  rows: number[];
}

export interface LivePrefixes {
  nodes: LivePrefix[];
  hits: number;
  misses: number;
  reused_tokens: number;
  /** Cells. */
  evicted: number;
}

/** Layers of a model on one of several nodes. Costs are means for each token. */
export interface LiveStage {
  node: string;
  begin: number;
  end: number;
  memory_bytes: number;
  token_us: number;
  token_bytes: number;
}

export interface LiveReplica {
  name: string;
  node: string;
  /** None of a model that is on one node. */
  stages: LiveStage[];
}

export interface LiveModel {
  name: string;
  replicas: LiveReplica[];
  /** The name of the replica that steps, sequences, caches and prefixes are of. */
  replica: string;
  state: "loading" | "ready";
  /** The share of the weights in place, from 0 to 1. */
  loading: number;
  /** null: never. */
  expires_in_s: number | null;
  load_s: number;
  /** Seconds since it was loaded. */
  age_s: number;
  engine: string;
  kernels: string;
  parallel: number;
  context: number;
  process_bytes: number;
  weight_bytes: number;
  cache_bytes: number;
  cache_limit_bytes: number;
  tokens_per_second: number;
  running: number;
  waiting: number;
  step_age_s: number;
  /** null, as `prefixes`, where the engine did not answer, or is not Puna's own. */
  steps: LiveSteps | null;
  sequences: LiveSequence[];
  caches: LiveCache[];
  prefixes: LivePrefixes | null;
}

export interface Live {
  time: number;
  machine: { cores: number; memory_total: number; memory_available: number };
  waiting_for_load: Record<string, number>;
  requests: LiveRequest[];
  models: LiveModel[];
}

// Ollama's API

export interface ModelDetails {
  parent_model?: string;
  format?: string;
  family?: string;
  families?: string[] | null;
  parameter_size?: string;
  quantization_level?: string;
  context_length?: number;
  embedding_length?: number;
}

export interface ModelTag {
  name: string;
  model: string;
  modified_at: string;
  size: number;
  digest: string;
  details: ModelDetails;
  capabilities?: string[];
  remote_model?: string;
  remote_host?: string;
}

export interface RunningModel {
  name: string;
  model: string;
  size: number;
  digest: string;
  details: ModelDetails;
  expires_at: string;
  size_vram: number;
  context_length: number;
  /** The share of the weights in place, while the model is loaded. */
  loading?: number;
  [field: string]: unknown;
}

export interface RunningRequest {
  id: string;
  model: string;
  [field: string]: unknown;
}

export interface Running {
  models: RunningModel[];
  requests: RunningRequest[];
}

export interface TensorInfo {
  name: string;
  type: string;
  shape: number[];
}

export interface ModelShow {
  modelfile: string;
  details: ModelDetails;
  model_info: Record<string, unknown>;
  modified_at: string;
  license?: string;
  parameters?: string;
  template?: string;
  system?: string;
  messages?: { role: string; content: string }[];
  projector_info?: Record<string, unknown>;
  tensors?: TensorInfo[];
  capabilities?: string[];
  requires?: string;
  engine?: string;
  answer_family?: string;
  adapters?: { id: number; name: string; scale: number }[];
}

export interface TransferProgress {
  status: string;
  digest?: string;
  total?: number;
  completed?: number;
  warnings?: string[];
}

export interface CreateModel {
  model: string;
  from?: string;
  files?: Record<string, string>;
  adapters?: Record<string, string>;
  adapter_scales?: Record<string, number>;
  template?: string;
  system?: string;
  license?: string | string[];
  parameters?: Record<string, unknown>;
  messages?: { role: string; content: string }[];
  quantize?: string;
  renderer?: string;
  parser?: string;
  requires?: string;
}

export interface Version {
  version: string;
  puna: string;
  devices: unknown;
}
