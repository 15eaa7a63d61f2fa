"""Pushes of models from the store to a registry, with the manifest last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from puna.errors import InvalidNameError, ModelNotFoundError, RegistryError, StoreError
from puna.registry.download import Patience
from puna.registry.remote import Registry
from puna.registry.report import Report, TransferProgress, translated_errors, without_tls
from puna.registry.upload import Upload
from puna.store import ModelName, Store, StoredModel
from puna.store.blobs import has_changed
from puna.store.manifest import ManifestLayer
from puna.store.names import DEFAULT_HOST, DEFAULT_NAMESPACE

#: Maximum silence of a registry, which takes a while to check a large blob.
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
    """Push the model `name` to the registry in its name, reporting progress to `report`.

    Blobs that the registry has, in this repository or another, are not sent, and an interrupted push resumes
    where it stopped. Raises InvalidNameError, ModelNotFoundError, RegistryError, StoreError, and
    TransferCancelledError after `cancelled` is set.
    """
    report(TransferProgress("retrieving manifest"))
    given = ModelName.parse(name.strip())
    plain = without_tls(name, insecure)
    if (given.host, given.namespace) == (DEFAULT_HOST, DEFAULT_NAMESPACE):
        raise RegistryError(
            f"the models of '{DEFAULT_NAMESPACE}' are Ollama's own: push it under your own name "
            f"('puna cp {given.model} YOU/{given.model}', then 'puna push YOU/{given.model}'; "
            f"for a registry of your own, HOST/YOU/{given.model})"
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
        _with_key(registry),
    ):
        registry.reach()
        pusher.send(registry)
        report(TransferProgress("pushing manifest"))
        registry.put_manifest(data)
    report(TransferProgress("success"))


@contextmanager
def _with_key(registry: Registry) -> Iterator[None]:
    """Translate errors; those that deny access name the key that was used."""
    try:
        with translated_errors():
            yield
    except RegistryError as error:
        if not registry.public_key or "access denied" not in str(error):
            raise
        raise RegistryError(
            f"{error}; allow this key to write to '{registry.name.namespace}' in the settings of your "
            f"account at {registry.name.host}: {registry.public_key}"
        ) from error


class _Pusher:
    """Uploader of a model's blobs."""

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
        """Raise StoreError if a blob is missing or shows that it has changed."""
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
        """Send all blobs that the registry does not have."""
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
        """Return another repository of the registry that may have the blob: `namespace/model`, or empty.

        This is the one the layer came from, or that of another model in the store with the same blob.
        """
        mine = self._model.model_name
        names = [other.model_name for other in self._store.list() if layer.digest in other.files]
        with suppress(InvalidNameError):  # the layer came from a file
            names.insert(0, ModelName.parse(layer.origin))
        for name in names:
            if name.host == mine.host and (name.namespace, name.model) != (mine.namespace, mine.model):
                return f"{name.namespace}/{name.model}"
        return ""
