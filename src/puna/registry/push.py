"""Pushing: a model of the store to a registry, of which the manifest arrives last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from puna.errors import InvalidNameError, ModelNotFoundError, RegistryError, StoreError
from puna.registry.download import Patience
from puna.registry.remote import Registry
from puna.registry.report import Report, TransferProgress, told, without_tls
from puna.registry.upload import Upload
from puna.store import ModelName, Store, StoredModel
from puna.store.blobs import has_changed
from puna.store.manifest import ManifestLayer
from puna.store.names import DEFAULT_HOST, DEFAULT_NAMESPACE

#: How long a registry may be silent: it takes a while to look at a large blob.
_STALL_S = 300.0


def push(
    store: Store,
    name: str,
    report: Report,
    *,
    insecure: bool = False,
    cancelled: threading.Event | None = None,
    patience: Patience | None = None,
) -> None:
    """Put the model `name` into the registry that its name says, telling `report` what happens.

    What the registry has, in this or another of its repositories, is not sent, and an interrupted push goes
    on where it was. Raises InvalidNameError, ModelNotFoundError, RegistryError, StoreError, and
    TransferCancelledError after `cancelled` is set.
    """
    report(TransferProgress("retrieving manifest"))
    given = ModelName.parse(name.strip())
    plain = without_tls(name, insecure)
    if (given.host, given.namespace) == (DEFAULT_HOST, DEFAULT_NAMESPACE):
        raise RegistryError(
            f"the models of '{DEFAULT_NAMESPACE}' are Ollama's own: push it under a name of yours "
            f"('puna cp {given.model} YOU/{given.model}', then 'puna push YOU/{given.model}'; "
            f"with a registry of your own, HOST/YOU/{given.model})"
        )
    try:
        model = store.get(given)
        data = store.manifest_bytes(given)
    except (ModelNotFoundError, StoreError):
        report(TransferProgress("couldn't retrieve manifest"))
        raise
    pusher = _Pusher(store, model, report, cancelled or threading.Event(), patience or Patience())
    pusher.check()
    with (
        Registry(
            given, insecure=insecure, plain=plain, writes=True, stall_s=_STALL_S, cancelled=cancelled
        ) as registry,
        _told(registry),
    ):
        registry.reach()
        pusher.send(registry)
        report(TransferProgress("pushing manifest"))
        registry.put_manifest(data)
    report(TransferProgress("success"))


@contextmanager
def _told(registry: Registry) -> Iterator[None]:
    """Errors for people; one that denies access says with which key it was asked."""
    try:
        with told():
            yield
    except RegistryError as error:
        if not registry.public_key or "access denied" not in str(error):
            raise
        raise RegistryError(
            f"{error}; {registry.name.host} must know that this key may write to "
            f"'{registry.name.namespace}' (in the settings of your account there): {registry.public_key}"
        ) from error


class _Pusher:
    """Sends a model's blobs."""

    def __init__(
        self, store: Store, model: StoredModel, report: Report, cancelled: threading.Event, patience: Patience
    ) -> None:
        self._store = store
        self._model = model
        self._report = report
        self._cancelled = cancelled
        self._patience = patience
        layers = (*model.manifest.layers, model.manifest.config)
        self._layers = {layer.digest: layer for layer in layers}.values()

    def check(self) -> None:
        """Raise StoreError unless all blobs are what the manifest says, as far as can be seen at once."""
        for layer in self._layers:
            path = self._model.files[layer.digest]
            if not path.is_file():
                raise StoreError(
                    f"{self._model.name}: its blob {layer.digest} is missing; create or pull it again"
                )
            if path.stat().st_size != layer.size or has_changed(path):
                raise StoreError(
                    f"{self._model.name}: its blob {layer.digest} has changed since the model was made; "
                    "create or pull it again"
                )

    def send(self, registry: Registry) -> None:
        """All blobs that the registry does not have."""
        for layer in self._layers:
            if registry.has(layer.digest):
                self._tell(layer, layer.size)
                continue
            self._tell(layer, 0)
            upload = Upload(
                registry,
                layer,
                self._model.files[layer.digest],
                self._cancelled,
                self._patience,
                mount_from=self._elsewhere(layer),
            )
            with closing(upload.run()) as steps:
                for completed in steps:
                    self._tell(layer, completed)
            self._tell(layer, layer.size)

    def _tell(self, layer: ManifestLayer, completed: int) -> None:
        self._report(TransferProgress.of_blob("pushing", layer.digest, layer.size, completed))

    def _elsewhere(self, layer: ManifestLayer) -> str:
        """Another repository of the same registry that may have the blob: `namespace/model`; else empty.

        That is the one the layer came from, or one of which the store has a model with it.
        """
        mine = self._model.model_name
        names = [other.model_name for other in self._store.list() if layer.digest in other.files]
        with suppress(InvalidNameError):  # it came from a file
            names.insert(0, ModelName.parse(layer.origin))
        for name in names:
            if name.host == mine.host and (name.namespace, name.model) != (mine.namespace, mine.model):
                return f"{name.namespace}/{name.model}"
        return ""
