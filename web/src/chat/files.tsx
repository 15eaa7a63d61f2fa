import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { getFile } from "../api/files";
import type { FileRef } from "../api/types";
import { Dialog } from "../ui/dialog";
import { bytes } from "../ui/format";
import { File as FileIcon } from "../ui/icons";
import { Spinner } from "../ui/progress";
import { saveFile } from "../ui/save_file";
import { toastError } from "../ui/toast";
import { addressOf } from "./contents";
import { isPicture, isRecording } from "./request";

/** The files of a message. */
export function Files({ files }: { files: readonly FileRef[] }) {
  return (
    <ul class="files" aria-label="Files">
      {files.map((file, index) => (
        <li key={`${file.id}-${index}`}>
          {isPicture(file) ? (
            <Picture file={file} />
          ) : isRecording(file) ? (
            <Sound file={file} />
          ) : (
            <TextFile file={file} />
          )}
        </li>
      ))}
    </ul>
  );
}

/** Return the address of a picture or recording once it is fetched. */
export function useAddress(file: FileRef | null): string | null {
  const address = useSignal<string | null>(null);
  const id = file?.id ?? null;
  useEffect(() => {
    if (file === null) return;
    let isCurrent = true;
    addressOf(file).then(
      (found) => {
        if (isCurrent) address.value = found;
      },
      () => {},
    );
    return () => {
      isCurrent = false;
    };
  }, [id]);
  return address.value;
}

function Picture({ file }: { file: FileRef }) {
  const isLarge = useSignal(false);
  const address = useAddress(file);
  return (
    <>
      <button
        type="button"
        class="picture"
        aria-label={`Show ${file.name} large`}
        onClick={() => {
          isLarge.value = true;
        }}
      >
        {address === null ? <Spinner /> : <img src={address} alt={file.name} />}
      </button>
      {isLarge.value && address !== null && (
        <Dialog
          title={file.name}
          size="l"
          onClose={() => {
            isLarge.value = false;
          }}
        >
          <img class="picture-large" src={address} alt={file.name} />
        </Dialog>
      )}
    </>
  );
}

function Sound({ file }: { file: FileRef }) {
  const address = useAddress(file);
  if (address === null) return <Spinner />;
  return (
    // biome-ignore lint/a11y/useMediaCaption: nobody has written down what a visitor recorded
    <audio class="sound" controls preload="metadata" src={address} aria-label={file.name} />
  );
}

const SHOWN = 200_000;

function TextFile({ file }: { file: FileRef }) {
  const text = useSignal<string | null>(null);
  const isOpen = useSignal(false);
  const open = async () => {
    isOpen.value = true;
    try {
      text.value ??= await (await getFile(file.id)).text();
    } catch (error) {
      isOpen.value = false;
      toastError(error, `${file.name} was not opened`);
    }
  };
  const shown = text.value?.slice(0, SHOWN);
  return (
    <>
      <button type="button" class="file-chip" onClick={() => void open()}>
        <FileIcon size={18} />
        <span class="truncate" dir="auto">
          {file.name}
        </span>
        <span class="faint small">{bytes(file.size)}</span>
      </button>
      {isOpen.value && (
        <Dialog
          title={file.name}
          size="l"
          onClose={() => {
            isOpen.value = false;
          }}
          actions={
            <button
              type="button"
              class="button plain"
              disabled={text.value === null}
              onClick={() => saveFile(new Blob([text.value ?? ""], { type: "text/plain" }), file.name)}
            >
              Save
            </button>
          }
        >
          {shown === undefined ? (
            <Spinner />
          ) : (
            <pre class="file-text" dir="auto">
              {shown}
              {text.value!.length > SHOWN && "\n…"}
            </pre>
          )}
        </Dialog>
      )}
    </>
  );
}
