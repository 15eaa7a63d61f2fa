import { Button, IconButton } from "../ui/button";
import { classes } from "../ui/classes";
import { bytes } from "../ui/format";
import { Close, Failure, File as FileIcon, Microphone as MicrophoneIcon } from "../ui/icons";
import { Spinner } from "../ui/progress";
import type { Attachment, Attachments } from "./attachments";
import { useAddress } from "./files";
import { isPicture, isRecording } from "./request";

/** The files that go with a message that is being written. */
export function AttachmentList(props: { attachments: Attachments; seesPictures?: boolean }) {
  const { attachments, seesPictures = false } = props;
  const list = attachments.list.value;
  if (list.length === 0) return null;
  return (
    <ul class="attachments" aria-label="Attached files">
      {list.map((each) => (
        <Chip key={each.key} attachment={each} attachments={attachments} seesPictures={seesPictures} />
      ))}
    </ul>
  );
}

function Chip(props: { attachment: Attachment; attachments: Attachments; seesPictures: boolean }) {
  const { attachment, attachments, seesPictures } = props;
  const { key, name, size, state, file, error, source } = attachment;
  const picture = useAddress(file !== null && isPicture(file) ? file : null);
  return (
    <li class={classes("attachment", state)}>
      {state === "reading" ? (
        <Spinner size={18} />
      ) : state === "failed" ? (
        <Failure size={18} />
      ) : picture !== null ? (
        <img src={picture} alt="" />
      ) : file !== null && isRecording(file) ? (
        <MicrophoneIcon size={18} />
      ) : (
        <FileIcon size={18} />
      )}
      <span class="attachment-text">
        <span class="truncate" dir="auto">
          {name}
        </span>
        {error !== null ? (
          <span class="field-error" role="alert">
            {error}
          </span>
        ) : (
          <span class="faint small">{state === "reading" ? "Reading…" : bytes(size)}</span>
        )}
      </span>
      {source !== null && state !== "reading" && seesPictures && file?.type === "text/plain" && (
        <Button size="s" kind="quiet" onClick={() => void attachments.asPictures(key)}>
          As pictures
        </Button>
      )}
      {source !== null && state === "failed" && file === null && (
        <Button size="s" kind="quiet" onClick={() => void attachments.asPictures(key)}>
          As pictures
        </Button>
      )}
      <IconButton size="s" icon={Close} label={`Remove ${name}`} onClick={() => attachments.remove(key)} />
    </li>
  );
}
