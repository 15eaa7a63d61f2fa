import type { Scope } from "../api/types";
import { can } from "../state/session";
import { Button, type ButtonProps } from "../ui/button";

export interface ScopedButtonProps extends ButtonProps {
  /** What the caller's key must allow. */
  scope: Scope;
  /** Why it cannot be used although the key allows it; null if it can. */
  reason?: string | null;
}

/** A button that says why it cannot be used. It stays in reach of the keyboard, so that everyone gets the reason. */
export function ScopedButton({ scope, reason = null, ...props }: ScopedButtonProps) {
  const why = reasonAgainst(scope) ?? reason;
  if (why === null) return <Button {...props} />;
  return (
    <Button
      {...props}
      aria-disabled="true"
      data-tip={why}
      aria-description={why}
      class={`unusable ${props.class ?? ""}`}
      onClick={(event) => {
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}

/** Why the caller's key does not allow something, or null if it does. */
export const reasonAgainst = (scope: Scope): string | null =>
  can(scope) ? null : `Your key does not have the scope “${scope}”.`;
