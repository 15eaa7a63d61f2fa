"""`puna doctor --store`: every blob of the model store read and compared with its digest."""

from __future__ import annotations

import json
from typing import Any

from puna.cli import humanize
from puna.cli.progress import StatusLines
from puna.registry.heal import heal
from puna.registry.report import Progress
from puna.store import Store
from puna.store.verify import Damage, Findings, verify


def doctor_store(*, as_json: bool, heals: bool, insecure: bool) -> bool:
    """Print what is wrong in the store, and make it right if it `heals` and can; whether all is well then."""
    store = Store()
    found = _verified(store, quiet=as_json)
    healed: list[str] = []
    left: list[tuple[Damage, str]] = [(damage, "") for damage in found.damages]
    if heals:
        left = []
        with StatusLines(quiet=as_json) as lines:

            def report(step: Progress) -> None:
                lines.show(step.status, step.completed, step.total)

            for damage in found.damages:
                reason = heal(store, damage, report, insecure=insecure)
                if reason:
                    left.append((damage, reason))
                else:
                    healed.append(damage.layer.digest)
    removed = store.prune() if heals else 0
    if as_json:
        print(json.dumps(_report(store, found, healed, left, removed), indent=2))
    else:
        print(_text(store, found, healed, left, removed))
    return not left and not found.manifests


def _verified(store: Store, *, quiet: bool) -> Findings:
    if quiet:
        return verify(store)
    with StatusLines() as lines:
        return verify(store, lambda done, total: lines.show("verifying", done, total))


def _report(
    store: Store, found: Findings, healed: list[str], left: list[tuple[Damage, str]], removed: int
) -> dict[str, Any]:
    return {
        "path": str(store.root),
        "models": found.models,
        "blobs": found.blobs,
        "size": found.size,
        "unused": [path.name for path in found.unused],
        "removed": removed,
        "healed": healed,
        "damaged": [
            {
                "digest": damage.layer.digest,
                "problem": damage.problem,
                "models": [name.display for name in damage.models],
                "reason": reason or None,
            }
            for damage, reason in left
        ],
        "manifests": found.manifests,
    }


def _text(
    store: Store, found: Findings, healed: list[str], left: list[tuple[Damage, str]], removed: int
) -> str:
    lines = [
        f"{store.root}: {found.models} model(s), {found.blobs} blob(s), {humanize.size(found.size)} read",
    ]
    lines += [f"- healed: {digest}" for digest in healed]
    for damage, reason in left:
        models = ", ".join(name.display for name in damage.models) or "no model"
        advice = reason or "'puna doctor --store --heal' fetches it again, if its registry still has it"
        lines.append(f"- {damage.layer.digest} of {models}: {damage.problem}; {advice}")
    lines += [f"- {problem}" for problem in found.manifests]
    if removed:
        lines.append(f"{removed} unused file(s) removed.")
    elif found.unused:
        lines.append(f"{len(found.unused)} unused or unfinished file(s); old ones go when a server starts.")
    if not left and not found.manifests:
        lines.append("Everything is what it should be.")
    return "\n".join(lines)
