"""Pulling: a model from a registry into the store, whole or not at all."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import httpx
import msgspec

from puna.errors import RegistryError, StoreError
from puna.registry.download import Download, Fetch, Patience, PullCancelledError, check
from puna.registry.partial import Partial
from puna.registry.remote import RefusedError, Registry
from puna.store import ModelName, Store, StoredModel
from puna.store.files import storage_errors
from puna.store.manifest import Layer, Manifest

_MOST_LAYERS = 1000


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pull or push is at; `total` and `completed` count the bytes of the blob `digest`."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


Report = Callable[[Progress], None]


def pull(
    store: Store,
    name: str,
    report: Report,
    *,
    insecure: bool = False,
    cancelled: threading.Event | None = None,
    patience: Patience | None = None,
) -> StoredModel:
    """Bring the model `name` of a registry into the store, telling `report` what happens.

    A spelling with `http://` means a registry without TLS, which needs `insecure`. Only what the store does
    not have is fetched, and what an interrupted pull has left is used. Several threads and processes may pull
    at once. Raises InvalidNameError, RegistryError, StoreError, and PullCancelledError after `cancelled` is
    set.
    """
    puller = _Puller(store, report, cancelled or threading.Event(), patience or Patience())
    model = ModelName.parse(name.strip())
    plain = name.strip().lower().startswith("http://")
    if plain and not insecure:
        raise RegistryError('insecure protocol http: add --insecure (in the API, "insecure": true) to use it')
    report(Progress("pulling manifest"))
    with Registry(model, insecure=insecure, plain=plain) as registry:
        with told("pull model manifest: "):
            data = registry.manifest()
        manifest = _checked(Manifest.decode(data, f"the manifest of {name}"))
        with told():
            puller.fetch(
                (*manifest.layers, manifest.config), lambda layer: partial(registry.blob, layer.digest)
            )
    report(Progress("writing manifest"))
    if store.put_manifest(model, data):
        report(Progress("removing unused layers"))
    report(Progress("success"))
    return store.get(model)


@contextmanager
def told(what: str = "") -> Iterator[None]:
    """What a registry or the way to it refuses, as an error for people, which begins with `what`."""
    try:
        yield
    except RefusedError as refusal:
        if refusal.status == 404:
            raise RegistryError(f"{what}file does not exist") from None
        if refusal.status in (401, 403):
            raise RegistryError(f"{what}unauthorized: access denied ({refusal})") from None
        raise RegistryError(f"{what}{refusal}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RegistryError(f"{what}{str(error) or type(error).__name__}") from error


def _checked(manifest: Manifest) -> Manifest:
    """The manifest, if its sizes can be. Raises RegistryError."""
    layers = (manifest.config, *manifest.layers)
    if len(layers) > _MOST_LAYERS:
        raise RegistryError(f"the manifest names {len(layers)} blobs; at most {_MOST_LAYERS} can be pulled")
    if wrong := next((layer for layer in layers if not 0 <= layer.size < 1 << 50), None):
        raise RegistryError(f"the manifest says that {wrong.digest} has {wrong.size} bytes")
    return manifest


class _Puller:
    """Fetches blobs into a store."""

    def __init__(self, store: Store, report: Report, cancelled: threading.Event, patience: Patience) -> None:
        self._store = store
        self._report = report
        self._cancelled = cancelled
        self._patience = patience

    def fetch(self, layers: tuple[Layer, ...], source: Callable[[Layer], Fetch]) -> None:
        """All of `layers`, each checked before it appears in the store.

        One at a time: two pulls that share some never wait for each other in a circle.
        """
        self._check_space(layers)
        for layer in {layer.digest: layer for layer in layers}.values():
            with ExitStack() as held:
                file = self._claimed(layer, held)
                if file is None:
                    self._tell(layer, layer.size)
                    continue
                file.plan()
                download = Download(file, source(layer), self._cancelled, self._patience)
                self._tell(layer, download.completed)
                for completed in download.run():
                    self._tell(layer, completed)
                self._report(Progress("verifying sha256 digest"))
                check(file, layer.digest, self._cancelled)
                file.finish()

    def _tell(self, layer: Layer, completed: int) -> None:
        short = layer.digest.removeprefix("sha256:")[:12]
        self._report(Progress(f"pulling {short}", layer.digest, layer.size, completed))

    def _claimed(self, layer: Layer, held: ExitStack) -> Partial | None:
        """The layer's file to download into; None once the store has the layer, if another pull brings it."""
        while not self._store.blobs.touch(layer.digest):
            file = Partial(self._store.blob_path(layer.digest), layer.size)
            if file.lock():
                held.enter_context(file)
                # It may have come between looking and locking.
                if not self._store.has_blob(layer.digest):
                    return file
                file.discard()
                continue
            self._tell(layer, min(file.noted_bytes, layer.size))
            if self._cancelled.wait(2 * self._patience.report_s):
                raise PullCancelledError
        return None

    def _check_space(self, layers: tuple[Layer, ...]) -> None:
        """Raise StoreError if what is missing cannot fit."""
        missing = {layer.digest: layer for layer in layers if not self._store.has_blob(layer.digest)}.values()
        there = sum(Partial(self._store.blob_path(layer.digest), layer.size).noted_bytes for layer in missing)
        needed = sum(layer.size for layer in missing) - there
        with storage_errors("look at", self._store.root):
            self._store.blobs.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._store.blobs.folder).free
        if needed > free:
            raise StoreError(
                f"{needed / 1e9:.1f} GB are to be downloaded, but {self._store.root} has room for "
                f"{free / 1e9:.1f} GB: free some space, or point PUNA_MODELS at another disk"
            )
