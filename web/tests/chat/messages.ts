import type { Message } from "../../src/api/types";

/** Return a message with the given parts. */
export const message = (id: string, parent: string | null, parts: Partial<Message> = {}): Message => ({
  id,
  parent,
  role: "user",
  content: id,
  thinking: "",
  calls: [],
  tool_name: "",
  tool_call_id: "",
  files: [],
  created: 0,
  model: "",
  stats: null,
  error: null,
  state: "done",
  ...parts,
});
