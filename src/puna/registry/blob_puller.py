"""Fetches blobs into the store: those it has not, one after the other, each checked."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from puna.errors import StoreError
from puna.registry.download import Download, Fetch, Patience, check
from puna.registry.network import TransferCancelledError
from puna.registry.partial import Partial
from puna.registry.report import Progress, Report
from puna.store import Store
from puna.store.files import storage_errors
from puna.store.manifest import Layer


class BlobPuller:
    """Fetches blobs into a store."""

    def __init__(self, store: Store, report: Report, cancelled: threading.Event, patience: Patience) -> None:
        self.store = store
        self.report = report
        self.cancelled = cancelled
        self.patience = patience

    def fetch(self, layers: Sequence[Layer], source: Callable[[Layer], Fetch], extra_bytes: int = 0) -> None:
        """All of `layers`, each checked before it appears in the store.

        One at a time: two pulls that share some never wait for each other in a circle. `extra_bytes` are
        needed beside them.
        """
        self._check_layers(layers, extra_bytes)
        for layer in {layer.digest: layer for layer in layers}.values():
            with ExitStack() as held:
                file = self._claimed(layer, held)
                if file is None:
                    self._tell(layer, layer.size)
                    continue
                file.plan()
                download = Download(file, source(layer), self.cancelled, self.patience)
                self._tell(layer, download.completed)
                for completed in download.run():
                    self._tell(layer, completed)
                self.report(Progress("verifying sha256 digest"))
                check(file, layer.digest, self.cancelled)
                file.finish()

    def _tell(self, layer: Layer, completed: int) -> None:
        self.report(Progress.of_blob("pulling", layer.digest, layer.size, completed))

    def _claimed(self, layer: Layer, held: ExitStack) -> Partial | None:
        """The layer's file to download into; None once the store has the layer, if another pull brings it."""
        while not (self.store.blobs.touch(layer.digest) and self._has(layer)):
            file = Partial(self.store.blob_path(layer.digest), layer.size)
            if file.lock():
                held.enter_context(file)
                # It may have come between looking and locking.
                if not self._has(layer):
                    return file
                file.discard()
                continue
            self._tell(layer, min(file.noted_bytes, layer.size))
            if self.cancelled.wait(2 * self.patience.report_s):
                raise TransferCancelledError
        return None

    def _has(self, layer: Layer) -> bool:
        """Whether the store has the layer, undamaged as far as can be seen at once."""
        path = self.store.blob_path(layer.digest)
        with storage_errors("look at", path):
            if not path.is_file() or path.stat().st_size != layer.size:
                return False
        return self.store.blob_seems_whole(layer.digest)

    def _check_layers(self, layers: Sequence[Layer], extra_bytes: int) -> None:
        """Raise StoreError if what is missing cannot fit."""
        missing = {layer.digest: layer for layer in layers if not self._has(layer)}.values()
        there = sum(Partial(self.store.blob_path(layer.digest), layer.size).noted_bytes for layer in missing)
        self.check_space(sum(layer.size for layer in missing) - there + extra_bytes)

    def check_space(self, needed: int) -> None:
        """Raise StoreError unless `needed` more bytes fit."""
        with storage_errors("look at", self.store.root):
            self.store.blobs.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.store.blobs.folder).free
        if needed > free:
            raise StoreError(
                f"{needed / 1e9:.1f} GB are to be downloaded, but {self.store.root} has room for "
                f"{free / 1e9:.1f} GB: free some space, or point PUNA_MODELS at another disk"
            )
