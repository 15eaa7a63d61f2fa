import { useSignal } from "@preact/signals";
import { ApiError, messageOf } from "../api/client";
import { signIn } from "../state/session";
import { Button } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { Switch, TextField } from "../ui/fields";
import { Logo } from "../ui/icons";

function SignInForm() {
  const key = useSignal("");
  const remember = useSignal(false);
  const busy = useSignal(false);
  const problem = useSignal<string | null>(null);

  const submit = async (event: Event) => {
    event.preventDefault();
    const text = key.value.trim();
    if (text === "") {
      problem.value = "Enter a key.";
      return;
    }
    busy.value = true;
    problem.value = null;
    try {
      await signIn(text, remember.value);
    } catch (error) {
      const unknown = error instanceof ApiError && error.isUnauthorized;
      problem.value = unknown ? "The server does not know this key." : messageOf(error);
    } finally {
      busy.value = false;
    }
  };

  return (
    <form class="stack" onSubmit={submit}>
      <TextField
        label="Key"
        type="password"
        placeholder="puna-…"
        value={key.value}
        error={problem.value}
        autocomplete="current-password"
        autofocus
        onInput={(value) => {
          key.value = value;
          problem.value = null;
        }}
        hint={
          <>
            Whoever runs the server makes keys with <code>puna key new</code>.
          </>
        }
      />
      <Switch
        label="Remember on this device"
        hint="Otherwise the key is forgotten with this tab."
        checked={remember.value}
        onChange={(checked) => {
          remember.value = checked;
        }}
      />
      <Button kind="primary" type="submit" busy={busy.value}>
        Sign in
      </Button>
    </form>
  );
}

/** The whole page, before anyone has signed in. */
export function SignIn() {
  return (
    <main class="hero-center">
      <div class="sign-in card">
        <Logo size={44} />
        <h1>Sign in to Puna</h1>
        <SignInForm />
      </div>
    </main>
  );
}

/** A dialog over the page, after a key stopped working: everything that was typed stays. */
export function SignInAgain() {
  return (
    <Dialog title="Your key is no longer accepted" size="s" sticky onClose={() => {}}>
      <p class="soft sign-in-again">Sign in to go on where you were.</p>
      <SignInForm />
    </Dialog>
  );
}
