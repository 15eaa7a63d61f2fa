// Anthropic's own client.

import Anthropic from "@anthropic-ai/sdk";
import { all, asked, errors, getWeather, report, url } from "./asked.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "any", maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const ask = (messages, more) =>
  client.messages.create({ model: asked.model, max_tokens: 400, messages, ...more });
const { name, description, parameters } = asked.tool;
const weather = { name, description, input_schema: parameters };

async function tools() {
  const messages = user(asked.tool_question);
  const { content } = await ask(messages, { tools: [weather] });
  const found = content.filter((block) => block.type === "tool_use");
  const results = found.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: getWeather() }));
  messages.push({ role: "assistant", content }, ...user(results));
  const done = await ask(messages, { tools: [weather] });
  return { calls: found.map((block) => [block.name, block.input]), answer: done.content[0].text };
}

await report({
  chat: async () => (await ask(user(asked.chat))).content[0].text,
  stream: async () => {
    const events = await all(await ask(user(asked.chat), { stream: true }));
    return events.filter((event) => event.type === "content_block_delta").map((event) => event.delta.text);
  },
  schema: async () => {
    const output_config = { format: { type: "json_schema", schema: asked.schema } };
    return JSON.parse((await ask(user(asked.schema_question), { output_config })).content[0].text);
  },
  tools,
  errors: () => errors((model) => ask(user("Hello"), { model })),
});
