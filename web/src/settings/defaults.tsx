import { useSignal } from "@preact/signals";
import { defaultSettings } from "../state/preferences";
import { TextField } from "../ui/fields";
import { count } from "../ui/format";
import { Section } from "./section";

/** A number within limits, or undefined for an empty text. */
export function numberIn(text: string, least: number, most: number): number | undefined | "wrong" {
  if (text.trim() === "") return undefined;
  const value = Number(text);
  return Number.isFinite(value) && value >= least && value <= most ? value : "wrong";
}

function options(): Record<string, unknown> {
  const given = defaultSettings.value.options;
  return typeof given === "object" && given !== null ? (given as Record<string, unknown>) : {};
}

function setOption(name: string, value: number | undefined): void {
  const { [name]: _, ...rest } = options();
  const next = value === undefined ? rest : { ...rest, [name]: value };
  defaultSettings.value = { ...defaultSettings.value, options: next };
}

interface NumberOptionProps {
  name: string;
  label: string;
  hint: string;
  least: number;
  most: number;
  whole?: boolean;
}

function NumberOption({ name, label, hint, least, most, whole }: NumberOptionProps) {
  const value = options()[name];
  const text = useSignal(typeof value === "number" ? String(value) : "");
  const isWrong = numberIn(text.value, least, most) === "wrong";
  return (
    <div class="setting">
      <TextField
        label={label}
        hint={hint}
        type="number"
        placeholder="As the model says"
        value={text.value}
        error={isWrong ? `Use a number from ${least} to ${count(most)}.` : null}
        onInput={(entered) => {
          text.value = entered;
          const given = numberIn(entered, least, most);
          if (given !== "wrong") setOption(name, whole && given !== undefined ? Math.round(given) : given);
        }}
      />
    </div>
  );
}

/** What new chats begin with; each chat can change it for itself. */
export function DefaultSettings() {
  const system = defaultSettings.value.system;
  return (
    <Section name="defaults" title="Defaults of new chats">
      <div class="setting">
        <TextField
          label="System prompt"
          hint="Empty: the model’s own."
          rows={3}
          value={typeof system === "string" ? system : ""}
          onInput={(text) => {
            const { system: _, ...rest } = defaultSettings.value;
            defaultSettings.value = text === "" ? rest : { ...rest, system: text };
          }}
        />
      </div>
      <NumberOption
        name="temperature"
        label="Temperature"
        hint="0 always takes the likeliest token; higher values vary more."
        least={0}
        most={10}
      />
      <NumberOption
        name="num_ctx"
        label="Context length"
        hint="Tokens of prompt and answer together. A longer one takes more memory."
        least={1}
        most={100_000_000}
        whole
      />
    </Section>
  );
}
