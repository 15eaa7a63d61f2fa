import { useEffect } from "preact/hooks";
import { askText } from "../ui/ask";
import { Button, IconButton } from "../ui/button";
import { Save, Trash } from "../ui/icons";
import { toast, toastError } from "../ui/toast";
import { presetOf, withPreset } from "./chat_settings";
import type { Conversation } from "./conversation";
import { loadPresets, presets, removePreset, savePreset } from "./preset_store";

/** Settings under names, for other chats. */
export function Presets({ chat }: { chat: Conversation }) {
  useEffect(() => {
    loadPresets().catch((error: unknown) => toastError(error, "The presets were not loaded"));
  }, []);
  const names = Object.keys(presets.value).sort((a, b) => a.localeCompare(b));
  const save = async () => {
    const name = await askText({
      title: "Save as a preset",
      body: "The model, the system prompt, options, format and tools are kept under a name.",
      label: "Name",
      action: "Save",
      suggestions: names,
      check: (text) =>
        text.trim() === "" ? "It needs a name." : text.trim().length > 100 ? "At most 100 characters." : null,
    });
    if (name === null) return;
    try {
      await savePreset(name.trim(), presetOf({ ...chat.settings.peek(), model: chat.model.peek() }));
      toast({ kind: "success", text: `Saved “${name.trim()}”` });
    } catch (error) {
      toastError(error, "The preset was not saved");
    }
  };
  const remove = async (name: string) => {
    const before = presets.value[name];
    try {
      await removePreset(name);
    } catch (error) {
      toastError(error, "The preset was not deleted");
      return;
    }
    toast({
      text: `Deleted “${name}”`,
      action: {
        label: "Undo",
        run: () => {
          if (before !== undefined) savePreset(name, before).catch(toastError);
        },
      },
    });
  };
  return (
    <section class="presets" aria-label="Presets">
      <div class="row">
        <h2 class="grow">Presets</h2>
        <Button size="s" kind="quiet" icon={Save} onClick={() => void save()}>
          Save these settings…
        </Button>
      </div>
      {names.length === 0 ? (
        <p class="field-hint">Settings that are saved under a name appear here, in every chat.</p>
      ) : (
        <ul>
          {names.map((name) => (
            <li key={name} class="preset">
              <button
                type="button"
                class="preset-name truncate"
                dir="auto"
                onClick={() => {
                  chat.change(withPreset(chat.settings.peek(), presets.value[name] ?? {}));
                  toast({ text: `“${name}” is in use in this chat` });
                }}
              >
                {name}
              </button>
              <IconButton
                size="s"
                icon={Trash}
                label={`Delete the preset ${name}`}
                onClick={() => void remove(name)}
              />
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
