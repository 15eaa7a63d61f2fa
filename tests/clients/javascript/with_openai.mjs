// OpenAI's own client, with chat completions or responses.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { all, asked, errors, getWeather, report, trip, url, way } from "./asked.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const model = asked.model;
const user = (content) => [{ role: "user", content }];
const weather = { type: "function", function: asked.tool };
const flat = { type: "function", strict: false, ...asked.tool };

const chats = {
  chat: async () => {
    const answer = await client.chat.completions.create({ model, messages: user(asked.chat) });
    return answer.choices[0].message.content;
  },
  stream: async () => {
    const parts = await client.chat.completions.create({ model, messages: user(asked.chat), stream: true });
    return (await all(parts)).map((part) => part.choices[0].delta.content);
  },
  schema: async () => {
    const messages = user(asked.schema_question);
    const response_format = zodResponseFormat(trip, "trip");
    const answer = await client.chat.completions.parse({ model, messages, response_format });
    return answer.choices[0].message.parsed;
  },
  tools: async () => {
    const messages = user(asked.tool_question);
    const answer = await client.chat.completions.create({ model, messages, tools: [weather] });
    const { message } = answer.choices[0];
    messages.push(message);
    const calls = message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
    for (const call of message.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: getWeather() });
    }
    const done = await client.chat.completions.create({ model, messages, tools: [weather] });
    return { calls, answer: done.choices[0].message.content };
  },
  errors: () => errors((name) => client.chat.completions.create({ model: name, messages: user("Hello") })),
};

const responses = {
  chat: async () => (await client.responses.create({ model, input: asked.chat })).output_text,
  stream: async () => {
    const events = await all(await client.responses.create({ model, input: asked.chat, stream: true }));
    return events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  },
  schema: async () => {
    const text = { format: zodTextFormat(trip, "trip") };
    return (await client.responses.parse({ model, input: asked.schema_question, text })).output_parsed;
  },
  tools: async () => {
    const answer = await client.responses.create({ model, input: asked.tool_question, tools: [flat] });
    const found = answer.output.filter((item) => item.type === "function_call");
    const results = found.map(({ call_id }) => ({ type: "function_call_output", call_id, output: getWeather() }));
    const more = { model, input: results, tools: [flat], previous_response_id: answer.id };
    const done = await client.responses.create(more);
    return { calls: found.map((item) => [item.name, JSON.parse(item.arguments)]), answer: done.output_text };
  },
  errors: () => errors((name) => client.responses.create({ model: name, input: "Hello" })),
};

await report({
  ...(way === "responses" ? responses : chats),
  embeddings: async () => {
    const got = await client.embeddings.create({ model: asked.embedder, input: asked.texts });
    return got.data.map((item) => item.embedding);
  },
});
