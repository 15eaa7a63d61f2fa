import { classes } from "./classes";

/** A ring that turns while something takes an unknown time. Decoration: say in words what is waited for. */
export const Spinner = ({ size = 18 }: { size?: number }) => (
  <svg class="spinner" width={size} height={size} viewBox="0 0 24 24" fill="none" aria-hidden="true">
    <circle cx="12" cy="12" r="9" stroke="currentColor" stroke-width="2.5" opacity="0.22" />
    <path d="M21 12a9 9 0 0 0-9-9" stroke="currentColor" stroke-width="2.5" stroke-linecap="round" />
  </svg>
);

export interface ProgressProps {
  /** From 0 to 1; null while it is not known. */
  value: number | null;
  label: string;
  kind?: "accent" | "danger" | "warning";
  thin?: boolean;
}

export function Progress({ value, label, kind = "accent", thin }: ProgressProps) {
  const share = value === null ? null : Math.min(1, Math.max(0, value));
  return (
    <div
      class={classes("progress", kind, thin && "thin", share === null && "unknown")}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={share === null ? undefined : Math.round(share * 100)}
    >
      <div style={share === null ? undefined : { inlineSize: `${share * 100}%` }} />
    </div>
  );
}
