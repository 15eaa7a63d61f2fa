import { Button } from "../ui/button";
import { Select, TextField } from "../ui/fields";
import { Success } from "../ui/icons";
import type { FormatKind } from "./chat_settings";
import { choicesIn, parse, problemOfFormat } from "./checks";
import type { Conversation } from "./conversation";

const KINDS: { value: FormatKind; label: string }[] = [
  { value: "none", label: "Free text" },
  { value: "json", label: "JSON, any object" },
  { value: "schema", label: "JSON of a schema" },
  { value: "grammar", label: "Text of a grammar" },
  { value: "regex", label: "Text of a regular expression" },
  { value: "choice", label: "One of several choices" },
];

const EXAMPLES: Partial<Record<FormatKind, string>> = {
  schema: JSON.stringify(
    {
      type: "object",
      properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
      required: ["name", "age"],
    },
    null,
    2,
  ),
  grammar: 'root ::= number " and " number\nnumber ::= [1-9] [0-9]?',
  regex: "(19|20)\\d\\d-[01]\\d-[0-3]\\d",
  choice: "yes\nno",
};

const HINTS: Partial<Record<FormatKind, string>> = {
  schema:
    "A JSON schema. Every answer that ends by itself is valid; say in the prompt, too, what you expect.",
  grammar: "GBNF of llama.cpp if there is “::=” in it, else Lark of llguidance.",
  regex: "It matches the whole answer. Rust’s syntax: no look-around and no back-references.",
  choice: "One a line.",
};

/** Chooses what answers must be like. */
export function FormatEditor({ chat }: { chat: Conversation }) {
  const { format } = chat.settings.value;
  const { kind, text } = format;
  const problem = problemOfFormat(format);
  const hasText = kind !== "none" && kind !== "json";
  const change = (next: string) => chat.change({ format: { kind, text: next } });
  return (
    <div class="stack panel-section">
      <Select<FormatKind>
        label="An answer is"
        value={kind}
        options={KINDS}
        hint={kind === "none" ? "Nothing is asked of its form." : undefined}
        onChange={(next) => chat.change({ format: { kind: next, text: next === kind ? text : "" } })}
      />
      {hasText && (
        <>
          <TextField
            label={KINDS.find((each) => each.value === kind)?.label ?? ""}
            hideLabel
            rows={kind === "regex" ? 3 : 14}
            mono
            value={text}
            hint={HINTS[kind]}
            error={text === "" ? null : problem}
            onInput={change}
          />
          <div class="row wrap">
            {text.trim() === "" && (
              <Button size="s" onClick={() => change(EXAMPLES[kind] ?? "")}>
                Begin with an example
              </Button>
            )}
            {kind === "schema" && text.trim() !== "" && (
              <Button
                size="s"
                kind="quiet"
                disabled={"problem" in parse(text)}
                onClick={() => {
                  const parsed = parse(text);
                  if ("value" in parsed) change(JSON.stringify(parsed.value, null, 2));
                }}
              >
                Tidy up
              </Button>
            )}
            {text.trim() !== "" && problem === null && (
              <span class="valid small">
                <Success size={15} />
                {kind === "choice" ? `${choicesIn(text).length} choices` : "Valid"}
              </span>
            )}
          </div>
        </>
      )}
    </div>
  );
}
