import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { chats } from "../api/chats";
import { messageOf } from "../api/client";
import type { ImportReport } from "../api/types";
import { Button } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { plural } from "../ui/format";
import { Notice } from "../ui/notice";
import { Progress } from "../ui/progress";
import { chooseFiles } from "../ui/save_file";
import { reload, tellOthers } from "./chat_list";

const importing = signal<File | null>(null);

/** Ask for a file with chats and import it. */
export async function chooseImport(): Promise<void> {
  const [file] = await chooseFiles({ accept: ".json,application/json" });
  if (file !== undefined) importing.value = file;
}

export function ImportHost() {
  return importing.value === null ? null : <ImportDialog file={importing.value} />;
}

function ImportDialog({ file }: { file: File }) {
  const report = useSignal<ImportReport | null>(null);
  const problem = useSignal<string | null>(null);
  useEffect(() => {
    chats()
      .import(file)
      .then(
        async (result) => {
          report.value = result;
          await reload();
          tellOthers();
        },
        (error) => {
          problem.value = messageOf(error);
        },
      );
  }, [file]);
  const isBusy = report.value === null && problem.value === null;
  const close = () => {
    importing.value = null;
  };

  return (
    <Dialog
      title={isBusy ? "Importing chats" : "Import"}
      size="s"
      sticky={isBusy}
      onClose={close}
      actions={
        isBusy ? undefined : (
          <Button kind="primary" onClick={close} data-autofocus="">
            Done
          </Button>
        )
      }
    >
      <div class="report" aria-live="polite">
        {isBusy && (
          <>
            <p dir="auto">{file.name}</p>
            <Progress value={null} label="Importing" />
          </>
        )}
        {problem.value !== null && <Notice kind="error">{problem.value}</Notice>}
        {report.value !== null && <Report report={report.value} />}
      </div>
    </Dialog>
  );
}

function Report({ report }: { report: ImportReport }) {
  const { imported, skipped } = report;
  return (
    <>
      <Notice kind={imported > 0 ? "success" : "warning"}>{plural(imported, "chat")} imported.</Notice>
      {skipped.length > 0 && (
        <>
          <p>{plural(skipped.length, "chat was", "chats were")} left out:</p>
          <ul>
            {skipped.map(({ title, reason }, index) => (
              <li key={index} dir="auto">
                <strong>{title || "Untitled chat"}</strong>: {reason}
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
