"""Pulls of models from a registry into the store, all or nothing, and repairs of damaged ones."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from puna.errors import PunaError, RegistryError
from puna.registry.download import BlobPuller, Patience
from puna.registry.hub import hub_of, pull_files
from puna.registry.remote import RefusedError, Registry
from puna.registry.report import Report, TransferProgress, translated_errors, without_tls
from puna.registry.web_file import pull_file
from puna.store import ModelName, Store, StoredModel
from puna.store.manifest import Manifest
from puna.store.names import is_file_address
from puna.store.verify import Damage

#: For repairs, for which a user waits and can ask again.
_HASTE: Final = Patience(tries=2)


def heal(
    store: Store,
    damage: Damage,
    report: Report,
    patience: Patience | None = None,
    *,
    insecure: bool = False,
) -> str:
    """Download a damaged blob again from the registry of a model. Return why that failed, or nothing.

    The damaged file is deleted only once its replacement exists. A link stays, since its file belongs to a
    user. `insecure` allows registries without TLS, and unknown certificates.
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
            with Registry(name, insecure=insecure) as registry, translated_errors():
                registry.reach()
                puller.fetch([damage.layer], lambda layer: partial(registry.blob, layer.digest))
        except PunaError as error:
            reasons.append(f"{name.host} does not provide it: {error}")
            continue
        aside.unlink(missing_ok=True)
        return ""
    if not damage.models:
        aside.unlink(missing_ok=True)  # as pruning would do
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
    """Pull the model `name` into the store, reporting progress to `report`.

    The model is in a registry, on the hub (`hf.co/user/repo:quantisation`) or a file at a web address. The
    prefix `http://` means a registry without TLS, which needs `insecure`. Only layers missing from the store
    are fetched, and interrupted pulls are resumed. Several threads and processes may pull at once. Raises
    InvalidNameError, RegistryError, StoreError, and TransferCancelledError after `cancelled` is set.
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
            with translated_errors("pull model manifest: ", keep_refusals=hub is not None):
                data = registry.manifest()
        except RefusedError:
            # The hub does not serve every repository as a registry, and not every hub is a registry.
            assert hub is not None
            return pull_files(puller, hub, model)
        manifest = _checked(Manifest.decode(data, f"the manifest of {name}"))
        with translated_errors():
            puller.fetch(
                (*manifest.layers, manifest.config), lambda layer: partial(registry.blob, layer.digest)
            )
    report(TransferProgress("writing manifest"))
    if store.put_manifest(model, data):
        report(TransferProgress("removing unused layers"))
    report(TransferProgress("success"))
    return store.get(model)


def _checked(manifest: Manifest) -> Manifest:
    """Return the manifest if its sizes are plausible. Raises RegistryError."""
    layers = (manifest.config, *manifest.layers)
    if len(layers) > _MAX_LAYERS:
        raise RegistryError(f"the manifest names {len(layers)} blobs; at most {_MAX_LAYERS} can be pulled")
    if wrong := next((layer for layer in layers if not 0 <= layer.size < 1 << 50), None):
        raise RegistryError(f"the manifest says that {wrong.digest} has {wrong.size} bytes")
    return manifest
