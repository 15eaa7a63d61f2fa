// One chat as the page shows it: its branches, settings and answers under way, and what can be done with it.
import { batch, computed, signal } from "@preact/signals";
import { chats } from "../api/chats";
import { ApiError, messageOf, NetworkError } from "../api/client";
import { addFile } from "../api/files";
import { listRuns, startRun, stopRun } from "../api/runs";
import type { CallResult, ChatHead, FileRef, Message, NewMessage, TokenLogprob } from "../api/types";
import { entries, noteAnswering, noteChat } from "../history/chat_list";
import { defaultSettings, titlesByModel } from "../state/preferences";
import { keepsHistory, me } from "../state/session";
import { toastError } from "../ui/toast";
import { ActiveRun } from "./active_run";
import { kept, type Settings, settingsOf } from "./chat_settings";
import { contentsOf } from "./contents";
import { firstModel, has, lastModel, loadModels } from "./models";
import { type Prefix, requestFor } from "./request";
import { described, offersOf } from "./tool_servers";
import { ToolWork } from "./tool_work";
import { beside, leafFrom, NO_MESSAGES, pathOf, refreshed, showing, treeOf, withMessage } from "./tree";

/** What went wrong with an answer before there was one, and below which message it was to be. */
export interface Failure {
  parent: string;
  message: string;
  prefix?: Prefix;
}

export interface Inside {
  tokens: readonly TokenLogprob[];
  prefix: { thinking: string; text: string };
}

const SAVE_SETTINGS_MS = 600;
const NO_PREFIX = { thinking: "", text: "" };
/** How often in a row a model may call tools before somebody has to say that it may go on. */
export const MOST_ROUNDS = 20;

/** Whether answers are asked for with the probabilities of their tokens. */
export const looksInside = signal(false);

let last = 0;

export class Conversation {
  /** Tells it apart from others, also before it has an id. */
  readonly key = ++last;
  readonly id = signal<string | null>(null);
  readonly head = signal<ChatHead | null>(null);
  readonly tree = signal(NO_MESSAGES);
  readonly settings = signal<Settings>(settingsOf(defaultSettings.peek()));
  readonly runs = signal<readonly ActiveRun[]>([]);
  readonly failure = signal<Failure | null>(null);
  /** The message that an answer is being asked for below, before the run has begun. */
  readonly asking = signal<string | null>(null);
  readonly loadError = signal<unknown>(null);
  readonly isLoading = signal(false);
  /** Said to screen readers. */
  readonly announcement = signal("");

  readonly path = computed(() => pathOf(this.tree.value));
  readonly model = computed(() => this.settings.value.model || firstModel.value);
  /** The work on calls of tools that is under way. */
  readonly work = signal<ToolWork | null>(null);
  readonly isAnswering = computed(
    () => this.runs.value.length > 0 || this.asking.value !== null || this.work.value !== null,
  );
  /** Whether the model is offered tools that the server calls. */
  readonly usesServers = computed(() => this.settings.value.mcp.length > 0 && (me.value?.mcp ?? false));
  /** Answers under way on the branch that is shown. */
  readonly shownRuns = computed(() => {
    const shown = new Set(this.path.value.map((message) => message.id));
    return this.runs.value.filter((run) => run.messages.some((id) => shown.has(id)));
  });

  private readonly inside = signal<ReadonlyMap<string, Inside>>(new Map());
  /** How long thoughts took that ended while this page looked on, in seconds. */
  private readonly thoughts = new Map<string, number>();
  private readonly prefixes = new Map<string, { thinking: string; text: string }>();
  private saving: ReturnType<typeof setTimeout> | undefined;
  /** Runs that this tab began: another one with the same chat must not call the same tools. */
  private readonly ownRuns = new WeakSet<ActiveRun>();
  /** Whether tools are called, or are about to be. */
  private isCalling = false;
  /** A message that may have been kept although the reply did not come. */
  private unsure: { message: NewMessage; since: number } | null = null;

  constructor(id: string | null) {
    this.id.value = id;
    if (id !== null) void this.load();
  }

  // What there is

  /** Return the run that writes a message, and which of its answers the message is. */
  runOf(message: string): { run: ActiveRun; sample: number } | null {
    for (const run of this.runs.value) {
      const sample = run.messages.indexOf(message);
      if (sample >= 0) return { run, sample };
    }
    return null;
  }

  /** Return the probabilities of an answer's tokens, if they were asked for in this tab. */
  insideOf(message: string): Inside | null {
    const running = this.runOf(message);
    if (running !== null) {
      const tokens = running.run.state.value.answers[running.sample]?.logprobs ?? [];
      return tokens.length > 0 ? { tokens, prefix: this.prefixes.get(message) ?? NO_PREFIX } : null;
    }
    return this.inside.value.get(message) ?? null;
  }

  /** Return how long a message's thought took: as it was seen, else by its share of the tokens. */
  thoughtSeconds({ id, stats }: Message): number | null {
    const seen = this.thoughts.get(id);
    if (seen !== undefined) return seen;
    const { thought_tokens: thought = 0, tokens = 0, eval_s: seconds = 0 } = stats ?? {};
    return tokens > 0 && thought > 0 ? (seconds * thought) / tokens : null;
  }

  // Loading

  async load(): Promise<void> {
    const id = this.id.peek();
    if (id === null) return;
    this.isLoading.value = true;
    try {
      const chat = await chats().get(id);
      const { settings, leaf, messages, ...head } = chat;
      batch(() => {
        this.head.value = head;
        this.settings.value = settingsOf(settings);
        this.tree.value = treeOf(messages, leaf);
        this.loadError.value = null;
      });
      await this.findRuns();
    } catch (error) {
      this.loadError.value = error;
    } finally {
      this.isLoading.value = false;
    }
  }

  /** Read the chat again, after another tab or device may have changed it. */
  async refresh(): Promise<void> {
    const id = this.id.peek();
    if (id === null || this.isAnswering.peek() || !keepsHistory.peek()) return;
    try {
      const { settings, leaf, messages, ...head } = await chats().get(id);
      if (this.isAnswering.peek()) return;
      const before = this.tree.peek();
      const isSame =
        before.byId.size === messages.length &&
        messages.every((message) => {
          const known = before.byId.get(message.id);
          return known?.state === message.state && known.content === message.content;
        });
      batch(() => {
        this.head.value = head;
        if (this.saving === undefined) this.settings.value = settingsOf(settings);
        if (!isSame) this.tree.value = refreshed(before, messages, leaf);
      });
      await this.findRuns();
    } catch (error) {
      if (error instanceof ApiError && error.isMissing) this.loadError.value = error;
    }
  }

  /** Follow the answers of this chat that are under way. */
  private async findRuns(): Promise<void> {
    const waiting = [...this.tree.peek().byId.values()].filter((message) => message.state === "running");
    if (waiting.length === 0) return;
    try {
      for (const head of await listRuns()) {
        const isOurs = head.chat === this.id.peek() && head.messages !== null;
        if (!isOurs || this.runs.peek().some((run) => run.id === head.id)) continue;
        if (!head.messages!.some((id) => waiting.some((message) => message.id === id))) continue;
        this.follow(new ActiveRun(head.id, head.messages!, head.model));
      }
    } catch {
      // The messages stay as they are; the next refresh tries again.
    }
    const orphans = waiting.filter((message) => this.runOf(message.id) === null);
    if (orphans.length > 0) setTimeout(() => void this.refresh(), 2500);
  }

  // Settings

  change(changes: Partial<Settings>): void {
    this.settings.value = { ...this.settings.peek(), ...changes };
    if (changes.model) lastModel.value = changes.model;
    clearTimeout(this.saving);
    this.saving = setTimeout(() => void this.saveSettings(), SAVE_SETTINGS_MS);
  }

  private async saveSettings(): Promise<void> {
    clearTimeout(this.saving);
    this.saving = undefined;
    const id = this.id.peek();
    if (id === null) return;
    try {
      const head = await chats().change(id, { settings: kept(this.settings.peek()) });
      this.head.value = head;
    } catch (error) {
      toastError(error, "The settings were not saved");
    }
  }

  // Branches

  private show(leaf: string | null): void {
    this.tree.value = { ...this.tree.peek(), leaf };
    void this.saveLeaf();
  }

  private async saveLeaf(): Promise<void> {
    const [id, leaf] = [this.id.peek(), this.tree.peek().leaf];
    if (id === null || leaf === null) return;
    try {
      await chats().change(id, { leaf });
    } catch {
      // Only which branch is shown at the next visit.
    }
  }

  showBeside(message: string, step: number): void {
    this.show(beside(this.tree.peek(), message, step).leaf);
  }

  showMessage(message: string): void {
    this.show(showing(this.tree.peek(), message).leaf);
  }

  /** Show answers to a message side by side, or the chosen one alone. */
  setSideBySide(parent: string, isSideBySide: boolean): void {
    const others = this.settings.peek().sideBySide.filter((id) => id !== parent);
    this.change({ sideBySide: isSideBySide ? [...others, parent] : others });
  }

  // Messages

  /** Keep a question and ask for its answers. Raises what keeping it raises; then nothing was sent. */
  async send(content: string, files: readonly FileRef[]): Promise<void> {
    const parent = this.tree.peek().leaf;
    const message = await this.add({ parent, role: "user", content, files: [...files] });
    void this.answer(message.id);
  }

  /** Keep another version of a message; a question is then asked again. */
  async edit(message: Message, content: string, files: readonly FileRef[]): Promise<void> {
    const { parent, role, thinking, calls, tool_name, tool_call_id } = message;
    const base = { parent, role, content, files: [...files], tool_name, tool_call_id };
    const edited = await this.add(role === "assistant" ? { ...base, thinking, calls } : base);
    if (role !== "assistant") void this.answer(edited.id);
  }

  /** Keep the results of the calls of a message, in their order, and go on with the answer. */
  async sendResults(message: Message, results: readonly string[]): Promise<void> {
    await this.keepResults(
      message,
      results.map((content) => ({ content, files: [] })),
    );
  }

  private async keepResults(
    message: Message,
    results: readonly { content: string; files: FileRef[] }[],
  ): Promise<void> {
    let parent = message.id;
    for (const [index, call] of message.calls.entries()) {
      const { content, files } = results[index] ?? { content: "", files: [] };
      const added = await this.add({
        parent,
        role: "tool",
        content,
        files,
        tool_name: call.name,
        tool_call_id: call.id,
      });
      parent = added.id;
    }
    void this.answer(parent);
  }

  // Tools of MCP servers

  /** Whether the calls of a message are the server's to make, not the user's to type results for. */
  isForServers(message: Message): boolean {
    if (!this.usesServers.value || message.calls.length === 0) return false;
    const { tools, usesTools } = this.settings.value;
    const typed = usesTools ? namesOfTools(tools) : [];
    return message.calls.every(({ name }) => !typed.includes(name));
  }

  /** Whether the model has called tools so often that somebody has to say that it may go on. */
  hasCalledOften(message: Message): boolean {
    const path = pathOf(this.tree.value, message.id);
    const last = path.findLastIndex(({ role }) => role === "user");
    const rounds = path.slice(last + 1).filter(({ calls }) => calls.length > 0).length;
    return rounds > 0 && rounds % MOST_ROUNDS === 0;
  }

  /** Call the tools that a message calls, and go on with the answer. */
  async runTools(message: Message): Promise<void> {
    if (this.work.peek() !== null || this.isCalling) return;
    this.isCalling = true;
    try {
      const { tools } = await offersOf(this.settings.peek().mcp);
      const work = new ToolWork(message, tools);
      this.work.value = work;
      const results = await work.results();
      if (results === null) return;
      const kept = [];
      for (const [index, result] of results.entries()) {
        kept.push(await this.readable(result, message.calls[index]?.name ?? "tool"));
      }
      await this.keepResults(message, kept);
    } catch (error) {
      toastError(error, "The tools were not called");
    } finally {
      this.work.value = null;
      this.isCalling = false;
    }
  }

  /** Return a result as a message keeps it; a model that sees no pictures is told how many there were. */
  private async readable(result: CallResult, name: string): Promise<{ content: string; files: FileRef[] }> {
    const { text, images } = result;
    if (images.length === 0) return { content: text, files: [] };
    if (!has(this.model.peek(), "vision")) {
      const left = `[${images.length} image(s) left out: the model cannot see]`;
      return { content: [text, left].filter((part) => part !== "").join("\n"), files: [] };
    }
    const files: FileRef[] = [];
    for (const [index, image] of images.entries()) {
      const data = pictureOf(image);
      files.push(await addFile(data, `${name} ${index + 1}.${data.type.split("/")[1]}`));
    }
    return { content: text, files };
  }

  private async add(message: NewMessage): Promise<Message> {
    const id = await this.ensureChat();
    let added: Message | null = null;
    if (this.unsure !== null) added = await this.findUnsure(id, message);
    if (added === null) {
      const since = Date.now() / 1000 - 5;
      try {
        added = await chats().addMessage(id, message);
      } catch (error) {
        if (error instanceof NetworkError) this.unsure = { message, since };
        throw error;
      }
    }
    this.unsure = null;
    const result = added;
    batch(() => {
      this.tree.value = withMessage(this.tree.peek(), result);
      this.failure.value = null;
    });
    this.noteHead();
    return result;
  }

  /** Return the message of a send whose reply was lost, if the server has it. */
  private async findUnsure(id: string, message: NewMessage): Promise<Message | null> {
    const { message: before, since } = this.unsure!;
    const isSame =
      before.parent === message.parent && before.content === message.content && before.role === message.role;
    if (!isSame) return null;
    const { messages } = await chats().get(id);
    return (
      messages.findLast(
        (each) =>
          each.parent === message.parent &&
          each.role === message.role &&
          each.content === message.content &&
          each.created >= since &&
          !this.tree.peek().byId.has(each.id),
      ) ?? null
    );
  }

  private async ensureChat(): Promise<string> {
    const before = this.id.peek();
    if (before !== null) return before;
    if (this.model.peek() === "") await loadModels();
    const model = this.model.peek();
    if (model !== "" && this.settings.peek().model === "") {
      this.settings.value = { ...this.settings.peek(), model };
    }
    const {
      settings: _,
      leaf: __,
      messages: ___,
      ...head
    } = await chats().create({
      settings: kept(this.settings.peek()),
    });
    batch(() => {
      this.head.value = head;
      this.id.value = head.id;
    });
    return head.id;
  }

  /** Tell the list of chats that this one has news. */
  private noteHead(): void {
    const before = this.head.peek();
    if (before === null) return;
    // The list knows what was changed there: a title, a folder.
    const { snippet: _, ...head } = { ...before, ...entries.peek().find((each) => each.id === before.id) };
    // As on the server: the chat is called after its first question.
    const first = [...this.tree.peek().byId.values()].find(
      (message) => message.role === "user" && message.content.trim() !== "",
    );
    const line = first?.content.trim().split(/\s*\n/, 1)[0] ?? "";
    const title = head.titled || line === "" ? head.title : [...line].slice(0, 80).join("");
    const next = { ...head, title, updated: Date.now() / 1000, model: this.model.peek() };
    this.head.value = next;
    noteChat(next);
  }

  // Answers

  /** Ask for answers below a message. What goes wrong before they begin is in `failure`. */
  async answer(parent: string, { prefix }: { prefix?: Prefix } = {}): Promise<void> {
    if (this.model.peek() === "") await loadModels();
    const settings = this.settings.peek();
    const model = this.model.peek();
    const names = settings.beside !== "" && prefix === undefined ? [model, settings.beside] : [model];
    batch(() => {
      this.failure.value = null;
      this.asking.value = parent;
    });
    let first: string | null = null;
    try {
      if (model === "") throw new Error("There is no model to answer. Pull one in “Models”.");
      if (this.saving !== undefined) void this.saveSettings();
      const path = pathOf(this.tree.peek(), parent);
      const contents = await contentsOf(path);
      const typed = settings.usesTools ? namesOfTools(settings.tools) : [];
      const offered = this.usesServers.peek()
        ? described((await offersOf(settings.mcp)).tools.filter(({ name }) => !typed.includes(name)))
        : [];
      for (const name of names) {
        const request = requestFor(settings, path, contents, {
          prefix,
          model: name,
          logprobs: looksInside.peek() || undefined,
        });
        if (offered.length > 0) request.tools = [...((request.tools as unknown[]) ?? []), ...offered];
        const ids = await this.begin(parent, request, prefix);
        first ??= ids[0] ?? null;
        const count = ids.length * names.length;
        if (count > 1) this.setSideBySide(parent, true);
        lastModel.value = model;
      }
    } catch (error) {
      this.failure.value = { parent, message: messageOf(error), prefix };
    } finally {
      this.asking.value = null;
    }
    // The server shows the newest answer; here it is the first of those that came together.
    if (first !== null && this.tree.peek().leaf !== first) this.show(first);
  }

  private async begin(
    parent: string,
    request: ReturnType<typeof requestFor>,
    prefix: Prefix | undefined,
  ): Promise<readonly string[]> {
    const store = chats();
    const chat = this.id.peek();
    const started = await startRun({
      ...(store.kept
        ? { chat: chat ?? undefined, parent, title: titlesByModel.peek() && !this.head.peek()?.titled }
        : {}),
      ...(prefix === undefined ? {} : { prefix }),
      request,
    });
    const count = request.n ?? 1;
    const ids = started.messages ?? Array.from({ length: count }, () => newId());
    const now = Date.now() / 1000;
    let tree = this.tree.peek();
    for (const id of ids) {
      const message: Message = {
        id,
        parent,
        role: "assistant",
        content: prefix?.content ?? "",
        thinking: prefix?.thinking ?? "",
        calls: [],
        tool_name: "",
        tool_call_id: "",
        files: [],
        created: now,
        model: request.model,
        stats: null,
        error: null,
        state: "running",
      };
      tree = withMessage(tree, message);
      if (prefix !== undefined) this.prefixes.set(id, { thinking: prefix.thinking, text: prefix.content });
      if (!store.kept && chat !== null) await store.keepMessage(chat, message);
    }
    const run = new ActiveRun(started.id, ids, request.model);
    this.ownRuns.add(run);
    batch(() => {
      this.tree.value = { ...tree, leaf: ids[0] ?? tree.leaf };
      this.follow(run);
      // The run shows from here on; another one may still have to begin.
      this.asking.value = null;
    });
    return ids;
  }

  private follow(run: ActiveRun): void {
    this.runs.value = [...this.runs.peek(), run];
    const id = this.id.peek();
    if (id !== null) noteAnswering(id, true);
    void run.answered.then((how) => this.finish(run, how));
    void run.ended.then(() => this.takeTitle(run.state.peek().title));
  }

  private async finish(run: ActiveRun, how: "ended" | "lost"): Promise<void> {
    const state = run.state.peek();
    const chat = this.id.peek();
    const store = chats();
    if (how === "lost" && store.kept && chat !== null) {
      // The server was restarted, or forgot the run: the history says what came of it.
      try {
        const { messages, leaf } = await store.get(chat);
        batch(() => {
          this.tree.value = refreshed(this.tree.peek(), messages, leaf);
          this.runs.value = this.runs.peek().filter((each) => each !== run);
        });
        noteAnswering(chat, this.runs.peek().length > 0);
        return;
      } catch {
        // What has arrived is all there is.
      }
    }
    let tree = this.tree.peek();
    const inside = new Map(this.inside.peek());
    const finished: Message[] = [];
    for (const [index, id] of run.messages.entries()) {
      const before = tree.byId.get(id);
      const answer = state.answers[index];
      if (before === undefined || answer === undefined) continue;
      const message: Message = {
        ...before,
        content: answer.text,
        thinking: answer.thinking,
        calls: answer.calls.map((call) => ({
          id: call.id ?? "",
          name: call.name ?? "",
          arguments: call.arguments ?? "",
        })),
        model: state.model || before.model,
        stats:
          answer.done === null
            ? null
            : { ...answer.done.stats, reason: answer.done.reason, warnings: answer.done.warnings },
        error: answer.done === null ? (state.error?.message ?? null) : null,
        state: answer.done !== null ? "done" : state.error !== null ? "failed" : "stopped",
      };
      tree = withMessage(tree, message);
      finished.push(message);
      if (answer.thoughtFrom !== null && answer.thoughtTo !== null) {
        this.thoughts.set(id, answer.thoughtTo - answer.thoughtFrom);
      }
      if (answer.logprobs.length > 0) {
        inside.set(id, { tokens: answer.logprobs, prefix: this.prefixes.get(id) ?? NO_PREFIX });
      }
    }
    batch(() => {
      this.tree.value = tree;
      this.inside.value = inside;
      this.runs.value = this.runs.peek().filter((each) => each !== run);
      this.announcement.value = endOf(
        state.ended ?? "done",
        state.error?.message ?? null,
        run.messages.length,
      );
    });
    if (chat !== null) {
      noteAnswering(chat, this.runs.peek().length > 0);
      for (const message of finished) await store.keepMessage(chat, message).catch(() => {});
    }
    this.noteHead();
    const [only] = finished;
    const goesOn =
      finished.length === 1 &&
      only !== undefined &&
      only.state === "done" &&
      this.ownRuns.has(run) &&
      this.runs.peek().length === 0 &&
      this.tree.peek().leaf === only.id &&
      this.isForServers(only) &&
      !this.hasCalledOften(only);
    if (goesOn) void this.runTools(only);
  }

  /** Take the title that a model gave the chat. */
  private takeTitle(title: string | null): void {
    const head = this.head.peek();
    if (title === null || head === null) return;
    this.head.value = { ...head, title, titled: true };
    noteChat(this.head.value);
  }

  regenerate(message: Message): void {
    if (message.parent !== null) void this.answer(message.parent);
  }

  /** Go on with an answer where it ends. */
  continueAnswer(message: Message): void {
    if (message.parent === null) return;
    void this.answer(message.parent, { prefix: { thinking: message.thinking, content: message.content } });
  }

  /** Ask for an answer that begins with this text: another branch. */
  branch(message: Message, prefix: Prefix): void {
    if (message.parent !== null) void this.answer(message.parent, { prefix });
  }

  retry(): void {
    const failure = this.failure.peek();
    if (failure !== null) void this.answer(failure.parent, { prefix: failure.prefix });
  }

  async stop(): Promise<void> {
    this.work.peek()?.stop();
    await Promise.all(
      this.runs.peek().map(async (run) => {
        try {
          await stopRun(run.id);
        } catch (error) {
          if (!(error instanceof ApiError && error.isMissing))
            toastError(error, "The answer was not stopped");
        }
      }),
    );
  }

  leafOf(message: string): string {
    return leafFrom(this.tree.peek(), message);
  }
}

/** The names of tools in a JSON list, as far as it is one. */
function namesOfTools(json: string): string[] {
  try {
    const tools = JSON.parse(json || "[]") as { function?: { name?: string } }[];
    return tools.map((tool) => tool.function?.name ?? "");
  } catch {
    return [];
  }
}

const PICTURES: Record<string, string> = { iVBOR: "image/png", "/9j/": "image/jpeg", R0lG: "image/gif" };

/** Return a picture in base64 as a file, whose type its first bytes tell. */
function pictureOf(base64: string): Blob {
  const known = Object.keys(PICTURES).find((start) => base64.startsWith(start));
  const type = known === undefined ? "image/webp" : PICTURES[known];
  return new Blob([Uint8Array.from(atob(base64), (character) => character.charCodeAt(0))], { type });
}

function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(8))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

function endOf(ended: string | null, error: string | null, count: number): string {
  const what = count > 1 ? "The answers are" : "The answer is";
  if (error !== null) return `The answer failed: ${error}`;
  return ended === "stopped" ? `${what} stopped.` : `${what} complete.`;
}
