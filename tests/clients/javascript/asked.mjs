// Questions that every program asks through its client, and the report; see ../python/asked.py.

import { readFileSync } from "node:fs";
import { z } from "zod";

export const asked = JSON.parse(readFileSync(new URL(`../${process.env.ASKED ?? "asked.json"}`, import.meta.url)));
export const [url, way] = process.argv.slice(2);
export const trip =
  asked.model === "demo"
    ? z.object({ name: z.string(), age: z.number().int() })
    : z.object({ city: z.literal("Lima"), days: z.literal(2) });
export const getWeather = () => asked.tool_result;

async function error(call) {
  try {
    await call();
  } catch (raised) {
    return [raised.constructor.name, `${raised.message} ${raised.responseBody ?? ""}`];
  }
  throw new Error("no error was raised");
}

// Return the errors of `ask` for a model that does not exist and one that cannot chat.
export async function errors(ask) {
  return { unknown: await error(() => ask(asked.unknown)), refused: await error(() => ask(asked.embedder)) };
}

export async function all(parts) {
  const found = [];
  for await (const part of parts) found.push(part);
  return found;
}

// Print the result of each column. An error in one does not affect the others.
export async function report(columns) {
  const found = {};
  for (const [name, column] of Object.entries(columns)) {
    try {
      found[name] = { got: await column() };
    } catch (raised) {
      found[name] = { failed: String(raised.stack) };
    }
  }
  console.log(JSON.stringify(found));
}
