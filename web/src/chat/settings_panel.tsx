import { useSignal } from "@preact/signals";
import { Button } from "../ui/button";
import { Segmented, TextField } from "../ui/fields";
import { Tabs } from "../ui/tabs";
import type { Settings } from "./chat_settings";
import type { Conversation } from "./conversation";
import { FormatEditor } from "./format_editor";
import { has, modelNamed } from "./models";
import { OptionList } from "./option_list";
import { type PanelTab, panelTab } from "./preferences";
import { Presets } from "./presets";
import { ToolsEditor } from "./tools_editor";

/** Everything that answers of a chat depend on beside its messages. */
export function SettingsPanel({ chat }: { chat: Conversation }) {
  const settings = chat.settings.value;
  const optionCount = Object.keys(settings.options).length + Object.keys(settings.fields).length;
  return (
    <div class="settings-panel">
      <Tabs<PanelTab>
        label="Settings of the chat"
        tabs={[
          { name: "prompt", label: "Prompt" },
          { name: "options", label: "Options", count: optionCount || undefined },
          { name: "format", label: "Format" },
          { name: "tools", label: "Tools" },
        ]}
        selected={panelTab.value}
        onSelect={(name) => {
          panelTab.value = name;
        }}
      >
        {panelTab.value === "prompt" && <Prompt chat={chat} />}
        {panelTab.value === "options" && <OptionList chat={chat} />}
        {panelTab.value === "format" && <FormatEditor chat={chat} />}
        {panelTab.value === "tools" && <ToolsEditor chat={chat} />}
      </Tabs>
    </div>
  );
}

type ThinkName = "auto" | "off" | "on" | "low" | "medium" | "high";

const THINK: Record<ThinkName, Settings["think"]> = {
  auto: undefined,
  off: false,
  on: true,
  low: "low",
  medium: "medium",
  high: "high",
};

function Prompt({ chat }: { chat: Conversation }) {
  const settings = chat.settings.value;
  const sure = useSignal(false);
  const thinks = (modelNamed(chat.model.value)?.capabilities ?? []).includes("thinking");
  const think = (Object.keys(THINK) as ThinkName[]).find((name) => THINK[name] === settings.think) ?? "auto";
  return (
    <div class="stack panel-section">
      <TextField
        label="System prompt"
        hint="Said to the model before the chat. Empty: the model’s own."
        rows={7}
        value={settings.system}
        onInput={(system) => chat.change({ system })}
      />
      <div class="field">
        <span class="field-label">Thinking</span>
        <Segmented<ThinkName>
          label="Thinking"
          value={think}
          options={[
            { value: "auto", label: "Auto" },
            { value: "off", label: "Off" },
            { value: "on", label: "On" },
            { value: "low", label: "Low" },
            { value: "medium", label: "Mid" },
            { value: "high", label: "High" },
          ]}
          onChange={(name) => chat.change({ think: THINK[name] })}
        />
        {!thinks && think !== "auto" && think !== "off" && has(chat.model.value, "completion") && (
          <p class="field-error">This model cannot think: the server will refuse.</p>
        )}
      </div>
      <Presets chat={chat} />
      <div>
        <Button
          size="s"
          kind="quiet"
          onClick={() => {
            if (!sure.value) {
              sure.value = true;
              return;
            }
            sure.value = false;
            chat.change({
              system: "",
              options: {},
              fields: {},
              format: { kind: "none", text: "" },
              think: undefined,
              tools: "",
              mcp: [],
              answers: 1,
              beside: "",
            });
          }}
          onBlur={() => {
            sure.value = false;
          }}
        >
          {sure.value ? "Press again to clear all settings" : "Clear all settings"}
        </Button>
      </div>
    </div>
  );
}
