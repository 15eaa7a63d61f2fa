// Vercel's `ai`, with its providers for OpenAI, OpenAI-compatible servers, Anthropic and Ollama.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { all, asked, errors, getWeather, report, trip, url, way } from "./asked.mjs";

const providers = {
  openai: () => createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" }),
  compatible: () =>
    createOpenAICompatible({ name: "puna", baseURL: `${url}/v1`, supportsStructuredOutputs: true }),
  anthropic: () => createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" }),
  ollama: () => createOllama({ baseURL: `${url}/api` }),
};
const provider = providers[way]();
// Otherwise it uses a tool call for models whose names it does not know.
const providerOptions = { anthropic: { structuredOutputMode: "outputFormat" } };
const ask = (prompt, more) =>
  generateText({ model: provider(asked.model), prompt, maxRetries: 0, providerOptions, ...more });

async function tools() {
  const calls = [];
  const get_weather = tool({
    description: asked.tool.description,
    inputSchema: jsonSchema(asked.tool.parameters),
    execute: (given) => {
      calls.push(["get_weather", given]);
      return getWeather();
    },
  });
  const answer = await ask(asked.tool_question, { tools: { get_weather }, stopWhen: stepCountIs(3) });
  return { calls, answer: answer.text };
}

const columns = {
  chat: async () => (await ask(asked.chat)).text,
  stream: () => all(streamText({ model: provider(asked.model), prompt: asked.chat }).textStream),
  schema: async () => (await ask(asked.schema_question, { output: Output.object({ schema: trip }) })).output,
  tools,
  errors: () => errors((name) => ask("Hello", { model: provider(name) })),
};
if (way !== "anthropic") {
  columns.embeddings = async () => {
    const model = provider.textEmbeddingModel(asked.embedder);
    return (await embedMany({ model, values: asked.texts })).embeddings;
  };
}
await report(columns);
