import { cancelRequest } from "../api/models";
import type { Live, LiveRequest } from "../api/types";
import { ScopedButton } from "../shell/scoped_button";
import { can } from "../state/session";
import { count, duration, plural } from "../ui/format";
import { Stop } from "../ui/icons";
import { toastError } from "../ui/toast";
import { DataTable, Panel } from "./panel";
import { Client } from "./sequences";
import { speed } from "./tiles";

const STATES: Record<string, string> = {
  loading: "waiting for the model",
  prompt: "reading",
  generating: "writing",
};

/** The requests being served, and those that wait for a model to load. */
export function Requests({ state }: { state: Live }) {
  const waiting = Object.entries(state.waiting_for_load).filter(([, number]) => number > 0);
  return (
    <Panel
      title="Requests"
      about="What clients of this server are waiting for, from arrival to the last token."
      side={<span class="panel-side">{plural(state.requests.length, "request")}</span>}
    >
      {waiting.length > 0 && (
        <p class="cache-facts">
          {waiting
            .map(([model, number]) => `${plural(number, "request")} for ${model} to be loaded`)
            .join(", ")}
        </p>
      )}
      <DataTable
        label="Requests"
        none="Nobody is waiting for anything."
        rows={state.requests}
        columns={[
          { head: "Model", cell: ({ model }) => <span dir="auto">{model}</span> },
          { head: "Client", cell: ({ client }) => <Client name={client} /> },
          { head: "State", cell: (request) => STATES[request.state] ?? request.state },
          { head: "For", numeric: true, cell: ({ duration_s }) => duration(duration_s) },
          {
            head: "Tokens",
            numeric: true,
            cell: ({ tokens, tokens_per_second: rate }) => (
              <>
                {count(tokens)}
                {rate > 0 && <span class="faint"> at {speed(rate)}/s</span>}
              </>
            ),
          },
          { head: "End it", cell: (request) => <End request={request} /> },
        ]}
      />
    </Panel>
  );
}

function End({ request }: { request: LiveRequest }) {
  // Whose request it is is told only to its client and to keys that manage the server; both may end it.
  const others = request.client === null && !can("manage");
  return (
    <ScopedButton
      scope="generate"
      reason={others ? "The request belongs to another key." : null}
      kind="quiet"
      size="s"
      icon={Stop}
      aria-label={`End the request ${request.id}`}
      onClick={() =>
        cancelRequest(request.id).catch((error) => toastError(error, "The request was not ended"))
      }
    >
      End
    </ScopedButton>
  );
}
