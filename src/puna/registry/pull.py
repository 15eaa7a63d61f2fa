"""Pulling a model from a registry into the store, whole or not at all, and healing a damaged one."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from puna.errors import PunaError, RegistryError
from puna.registry.download import BlobPuller, Patience
from puna.registry.hub import hub_of, pull_files
from puna.registry.remote import RefusedError, Registry
from puna.registry.report import Report, TransferProgress, told, without_tls
from puna.registry.web_file import pull_file
from puna.store import ModelName, Store, StoredModel
from puna.store.manifest import Manifest
from puna.store.names import is_file_address
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


_MAX_LAYERS = 1000


def pull(
    store: Store,
    name: str,
    report: Report,
    *,
    insecure: bool = False,
    cancelled: threading.Event | None = None,
    patience: Patience | None = None,
) -> StoredModel:
    """Bring the model `name` into the store, telling `report` what happens.

    It is a registry's, the hub's (`hf.co/user/repo:quantisation`), or a file's at a web address. A spelling
    with `http://` means one without TLS, which needs `insecure`. Only what the store does not have is
    fetched, and what an interrupted pull has left is used. Several threads and processes may pull at once.
    Raises InvalidNameError, RegistryError, StoreError, and TransferCancelledError after `cancelled` is set.
    """
    puller = BlobPuller(store, report, cancelled or threading.Event(), patience or Patience())
    model = ModelName.parse(name.strip())
    plain = without_tls(name, insecure)
    report(TransferProgress("pulling manifest"))
    hub = hub_of(model)
    if hub is None and is_file_address(name):
        return pull_file(puller, name.strip(), model, insecure=insecure)
    endpoint, token = (hub.endpoint, hub.token) if hub else ("", "")
    with Registry(
        model,
        insecure=insecure,
        plain=plain,
        endpoint=endpoint,
        token=token,
        cancelled=puller.cancelled,
    ) as registry:
        try:
            with told("pull model manifest: ", passing=hub is not None):
                data = registry.manifest()
        except RefusedError:
            # Not all it has does it offer as a registry, and not all who offer its files are one.
            assert hub is not None
            return pull_files(puller, hub, model)
        manifest = _checked(Manifest.decode(data, f"the manifest of {name}"))
        with told():
            puller.fetch(
                (*manifest.layers, manifest.config), lambda layer: partial(registry.blob, layer.digest)
            )
    report(TransferProgress("writing manifest"))
    if store.put_manifest(model, data):
        report(TransferProgress("removing unused layers"))
    report(TransferProgress("success"))
    return store.get(model)


def _checked(manifest: Manifest) -> Manifest:
    """The manifest, if its sizes can be. Raises RegistryError."""
    layers = (manifest.config, *manifest.layers)
    if len(layers) > _MAX_LAYERS:
        raise RegistryError(f"the manifest names {len(layers)} blobs; at most {_MAX_LAYERS} can be pulled")
    if wrong := next((layer for layer in layers if not 0 <= layer.size < 1 << 50), None):
        raise RegistryError(f"the manifest says that {wrong.digest} has {wrong.size} bytes")
    return manifest
