// Builds the body of /api/chat from the branch that is shown and the settings of the chat.
import type { ChatRequest, FileRef, Message, RequestMessage } from "../api/types";
import type { Settings } from "./chat_settings";
import { checkSettings } from "./checks";

/** The content of a file of a message: text that goes into the prompt, or a picture or recording in base64. */
export type FileContent = { kind: "text"; text: string } | { kind: "media"; base64: string };

export type Contents = ReadonlyMap<string, FileContent>;

export const isPicture = (file: FileRef): boolean => file.type.startsWith("image/");
export const isRecording = (file: FileRef): boolean => file.type.startsWith("audio/");

export interface Prefix {
  thinking: string;
  content: string;
}

/**
 * Return the request for an answer below the last message of `path`.
 *
 * Raises `Error` for settings that do not parse and files whose content is missing.
 */
export function requestFor(
  settings: Settings,
  path: readonly Message[],
  contents: Contents,
  { prefix, logprobs, model }: { prefix?: Prefix; logprobs?: boolean; model?: string } = {},
): ChatRequest {
  const parsed = checkSettings(settings);
  const problem = parsed.problems[0];
  if (problem !== undefined) throw new Error(problem);
  const messages: RequestMessage[] = [];
  if (settings.system.trim() !== "") messages.push({ role: "system", content: settings.system });
  for (const message of path) {
    const isEmpty = message.content === "" && message.thinking === "" && message.calls.length === 0;
    if (message.role === "assistant" && isEmpty) continue;
    messages.push(requestMessage(message, contents));
  }
  if (prefix !== undefined) {
    const { content, thinking } = prefix;
    messages.push({ role: "assistant", content, ...(thinking === "" ? {} : { thinking }) });
  }
  const request: ChatRequest = { model: model ?? settings.model, messages, ...settings.fields };
  if (Object.keys(settings.options).length > 0) request.options = { ...settings.options };
  if (settings.think !== undefined) request.think = settings.think;
  Object.assign(request, parsed.format);
  if (parsed.tools !== null && settings.usesTools) request.tools = parsed.tools;
  if (settings.answers > 1 && prefix === undefined) request.n = settings.answers;
  if (logprobs) Object.assign(request, { logprobs: true, top_logprobs: 8 });
  return request;
}

function requestMessage(message: Message, contents: Contents): RequestMessage {
  const images: string[] = []; // and recordings, which Ollama's API has no other place for
  const texts: string[] = [];
  for (const file of message.files) {
    const content = contents.get(file.id);
    if (content === undefined) throw new Error(`${file.name} is gone: attach it again, or edit the message.`);
    if (content.kind === "media") images.push(content.base64);
    else texts.push(attached(file.name, content.text));
  }
  const result: RequestMessage = {
    role: message.role,
    content: [...texts, message.content].join("\n\n").trim(),
  };
  if (texts.length === 0) result.content = message.content;
  if (message.thinking !== "" && message.role === "assistant") result.thinking = message.thinking;
  if (images.length > 0) result.images = images;
  if (message.calls.length > 0) {
    result.tool_calls = message.calls.map((call) => ({
      ...(call.id ? { id: call.id } : {}),
      function: { name: call.name, arguments: argumentsOf(call.arguments) },
    }));
  }
  if (message.role === "tool") {
    if (message.tool_name) result.tool_name = message.tool_name;
    if (message.tool_call_id) result.tool_call_id = message.tool_call_id;
  }
  return result;
}

function argumentsOf(json: string): unknown {
  try {
    return JSON.parse(json || "{}") as unknown;
  } catch {
    return json;
  }
}

/** Return a file's text between fences longer than any in it. */
function attached(name: string, text: string): string {
  const longest = [...text.matchAll(/`{3,}/g)].reduce((most, [ticks]) => Math.max(most, ticks.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}
