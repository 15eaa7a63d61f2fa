import { Button, IconButton } from "../ui/button";
import { bytes, duration } from "../ui/format";
import { Close, Refresh, Stop } from "../ui/icons";
import { Badge, Notice } from "../ui/notice";
import { Progress } from "../ui/progress";
import { amountOf, type Part, paceOf, type Transfer } from "./transfer";

function kindOf(state: Transfer["state"], { done, total }: Part): "accent" | "danger" | "warning" {
  if (done >= total || state === "running" || state === "done") return "accent";
  return state === "failed" ? "danger" : "warning";
}

export interface TransferCardProps {
  transfer: Transfer;
  /** What is done, as a heading: "Pulling demo". */
  title: string;
  onStop: () => void;
  onResume?: () => void;
  onDismiss?: () => void;
}

/** A pull, or a model being made: a bar for each part, and errors that stay. */
export function TransferCard({ transfer, title, onStop, onResume, onDismiss }: TransferCardProps) {
  const { state, status, parts, error, warnings } = transfer;
  const { done, total } = amountOf(transfer);
  const pace = state === "running" ? paceOf(transfer) : null;
  return (
    <section class="card transfer" aria-label={title}>
      <div class="row wrap">
        <h2 class="truncate" dir="auto">
          {title}
        </h2>
        {state === "done" && <Badge kind="accent">done</Badge>}
        {state === "stopped" && <Badge kind="warning">stopped</Badge>}
        {state === "failed" && <Badge kind="danger">failed</Badge>}
        <span class="grow" />
        {total > 0 && (
          <span class="small soft numbers">
            {bytes(done)} of {bytes(total)}
            {pace && ` · ${bytes(pace.speed)}/s · ${duration(pace.left_s)} left`}
          </span>
        )}
        {state === "running" ? (
          <Button size="s" icon={Stop} onClick={onStop}>
            Cancel
          </Button>
        ) : (
          <>
            {onResume && state !== "done" && (
              <Button size="s" icon={Refresh} onClick={onResume}>
                Resume
              </Button>
            )}
            {onDismiss && <IconButton size="s" icon={Close} label="Dismiss" onClick={onDismiss} />}
          </>
        )}
      </div>
      {error && <Notice kind="error">{error}</Notice>}
      {warnings.map((warning) => (
        <Notice key={warning} kind="warning">
          {warning}
        </Notice>
      ))}
      {parts.length > 0 && (
        <ul class="transfer-parts">
          {parts.map((part) => (
            <li key={part.key}>
              <span class="truncate mono">{part.label}</span>
              <Progress
                value={part.total > 0 ? part.done / part.total : null}
                label={part.label}
                kind={kindOf(state, part)}
              />
              <span class="numbers faint">{bytes(part.total)}</span>
            </li>
          ))}
        </ul>
      )}
      {state === "running" && (
        <p class="small soft" role="status">
          {status}
        </p>
      )}
      {state === "running" && parts.length === 0 && <Progress value={null} label={title} thin />}
    </section>
  );
}
