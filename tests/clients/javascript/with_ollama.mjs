// Ollama's own client.

import { Ollama } from "ollama";
import { all, asked, errors, getWeather, report, url } from "./asked.mjs";

const client = new Ollama({ host: url });
const model = asked.model;
const user = (content) => [{ role: "user", content }];
const weather = { type: "function", function: asked.tool };

async function tools() {
  const messages = user(asked.tool_question);
  const { message } = await client.chat({ model, messages, tools: [weather] });
  messages.push(message);
  for (const call of message.tool_calls) {
    messages.push({ role: "tool", tool_name: call.function.name, content: getWeather(call.function.arguments) });
  }
  const done = await client.chat({ model, messages, tools: [weather] });
  return {
    calls: message.tool_calls.map((call) => [call.function.name, call.function.arguments]),
    answer: done.message.content,
  };
}

await report({
  chat: async () => (await client.chat({ model, messages: user(asked.chat) })).message.content,
  stream: async () => {
    const parts = await client.chat({ model, messages: user(asked.chat), stream: true });
    return (await all(parts)).map((part) => part.message.content);
  },
  schema: async () => {
    const answer = await client.chat({ model, messages: user(asked.schema_question), format: asked.schema });
    return JSON.parse(answer.message.content);
  },
  tools,
  embeddings: async () => (await client.embed({ model: asked.embedder, input: asked.texts })).embeddings,
  errors: () => errors((name) => client.chat({ model: name, messages: user("Hello") })),
});
