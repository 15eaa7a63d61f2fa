"""Healing a store: what is damaged of a model is fetched again from where the model came."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from puna.errors import PunaError
from puna.registry.blob_puller import BlobPuller
from puna.registry.download import Patience
from puna.registry.remote import Registry
from puna.registry.report import Report, told
from puna.store import Store
from puna.store.verify import Damage

#: Somebody waits for it, and can ask again.
_HASTE: Final = Patience(tries=2)


def heal(
    store: Store,
    damage: Damage,
    report: Report,
    patience: Patience | None = None,
    *,
    insecure: bool = False,
) -> str:
    """Fetch a damaged blob from the registry of a model that uses it. Returns why that failed, or nothing.

    The damaged file goes only once another one is there. One that is a link to a file stays: that file is
    somebody's. `insecure` allows registries without TLS, and unknown certificates.
    """
    path = store.blob_path(damage.layer.digest)
    if path.is_symlink():
        return "it is a link to a file outside the store; create the model again"
    aside = path.with_name(f"{path.name}-damaged")
    reasons: list[str] = []
    if path.exists():
        path.replace(aside)
    for name in damage.models:
        puller = BlobPuller(store, report, threading.Event(), patience or _HASTE)
        try:
            with Registry(name, insecure=insecure) as registry, told():
                registry.reach()
                puller.fetch([damage.layer], lambda layer: partial(registry.blob, layer.digest))
        except PunaError as error:
            reasons.append(f"{name.host} does not give it again: {error}")
            continue
        aside.unlink(missing_ok=True)
        return ""
    if not damage.models:
        aside.unlink(missing_ok=True)  # pruning would do the same
        return ""
    if aside.exists():
        aside.replace(path)
    return "; ".join(dict.fromkeys(reasons))
