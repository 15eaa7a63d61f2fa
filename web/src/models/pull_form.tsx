import { useSignal } from "@preact/signals";
import { reasonAgainst, ScopedButton } from "../shell/scoped_button";
import { TextField } from "../ui/fields";
import { Download } from "../ui/icons";
import { dismissPull, pulls, startPull, stopPull } from "./pulls";
import { TransferCard } from "./transfer_card";

export function PullForm() {
  const name = useSignal("");
  const isTried = useSignal(false);
  const problem = name.value.trim() === "" ? "Say which model." : null;
  return (
    <>
      <form
        class="pull-form"
        onSubmit={(event) => {
          event.preventDefault();
          isTried.value = true;
          if (problem !== null || reasonAgainst("manage") !== null) return;
          isTried.value = false;
          void startPull(name.value.trim());
          name.value = "";
        }}
      >
        <TextField
          label="Pull a model"
          hint="A name from Ollama’s library, or where it is: hf.co/OWNER/REPOSITORY:Q4_K_M. A pull that was stopped goes on where it was."
          placeholder="llama3.2:1b"
          value={name.value}
          disabled={reasonAgainst("manage") !== null}
          error={isTried.value ? problem : null}
          onInput={(value) => {
            name.value = value;
          }}
        />
        <ScopedButton scope="manage" type="submit" kind="primary" icon={Download}>
          Pull
        </ScopedButton>
      </form>
      {pulls.value.map((pull) => (
        <TransferCard
          key={pull.name}
          transfer={pull}
          title={pull.name}
          onStop={() => stopPull(pull.name)}
          onResume={() => void startPull(pull.name)}
          onDismiss={() => dismissPull(pull.name)}
        />
      ))}
    </>
  );
}
