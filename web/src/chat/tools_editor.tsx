import { Button } from "../ui/button";
import { Switch, TextField } from "../ui/fields";
import { Badge, Notice } from "../ui/notice";
import { parse, problemOfTools } from "./checks";
import type { Conversation } from "./conversation";
import { has, shortName } from "./models";

const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

/** Lists the tools that the model may call. */
export function ToolsEditor({ chat }: { chat: Conversation }) {
  const { tools, usesTools } = chat.settings.value;
  const problem = problemOfTools(tools);
  const change = (text: string) => chat.change({ tools: text });
  const model = chat.model.value;
  return (
    <div class="stack panel-section">
      <Switch
        label="Offer tools to the model"
        hint="You type in what a tool returns; the answer then goes on."
        checked={usesTools}
        onChange={(checked) => chat.change({ usesTools: checked })}
      />
      {usesTools && tools.trim() !== "" && !has(model, "tools") && (
        <Notice kind="warning">
          {shortName(model)} was not taught to call tools: the server will refuse them.
        </Notice>
      )}
      <TextField
        label="Tools"
        hideLabel
        rows={18}
        mono
        disabled={!usesTools}
        value={tools}
        placeholder="[]"
        hint="A JSON list of functions, as in Ollama’s and OpenAI’s APIs."
        error={problem}
        onInput={change}
      />
      <div class="row wrap">
        {tools.trim() === "" ? (
          <Button size="s" disabled={!usesTools} onClick={() => change(JSON.stringify(EXAMPLE, null, 2))}>
            Begin with an example
          </Button>
        ) : (
          <Button
            size="s"
            kind="quiet"
            disabled={"problem" in parse(tools)}
            onClick={() => {
              const parsed = parse(tools);
              if ("value" in parsed) change(JSON.stringify(parsed.value, null, 2));
            }}
          >
            Tidy up
          </Button>
        )}
        {problem === null && namesIn(tools).map((name) => <Badge key={name}>{name}</Badge>)}
      </div>
    </div>
  );
}

function namesIn(text: string): string[] {
  const parsed = text.trim() === "" ? { value: [] } : parse(text);
  if (!("value" in parsed) || !Array.isArray(parsed.value)) return [];
  return parsed.value.map((tool) => (tool as { function?: { name?: string } }).function?.name ?? "");
}
