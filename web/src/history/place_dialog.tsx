import { useSignal } from "@preact/signals";
import type { ChatHead } from "../api/types";
import { Button } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { TextField } from "../ui/fields";
import { change } from "./actions";
import { folders, reload, tags } from "./chat_list";
import { tagsIn } from "./entries";

/** Asks where a chat belongs: its folder and its tags. */
export function PlaceDialog({ chat, onClose }: { chat: ChatHead; onClose: () => void }) {
  const folder = useSignal(chat.folder);
  const tagText = useSignal(chat.tags.join(", "));
  const chosen = tagsIn(tagText.value);
  const others = tags.value.map(({ name }) => name).filter((name) => !chosen.includes(name));

  const save = async (event: Event) => {
    event.preventDefault();
    onClose();
    await change(chat, { folder: folder.value.trim(), tags: chosen }, "The chat was not moved");
    await reload(); // the folders and tags there are, and how many chats they have
  };

  return (
    <Dialog
      title="Folder and tags"
      size="s"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" form="place-chat">
            Save
          </Button>
        </>
      }
    >
      <form id="place-chat" class="stack" onSubmit={save}>
        <TextField
          label="Folder"
          value={folder.value}
          placeholder="None"
          suggestions={folders.value.map(({ name }) => name)}
          hint="A new name makes a new folder."
          autofocus
          onInput={(value) => {
            folder.value = value;
          }}
        />
        <TextField
          label="Tags"
          value={tagText.value}
          placeholder="None"
          hint="Separated by commas."
          onInput={(value) => {
            tagText.value = value;
          }}
        />
        {others.length > 0 && (
          // biome-ignore lint/a11y/useSemanticElements: a few buttons under one name, not a part of the form
          <div class="row wrap" role="group" aria-label="Add a tag">
            {others.slice(0, 12).map((name) => (
              <Button
                key={name}
                size="s"
                onClick={() => {
                  tagText.value = [...chosen, name].join(", ");
                }}
              >
                + {name}
              </Button>
            ))}
          </div>
        )}
      </form>
    </Dialog>
  );
}
