"""The cache of cross-attention: keys and values of images, visible to later text of the same sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.batch import Batch
from puna.errors import CacheFileError, CacheFullError
from puna.kvcache.cache import KVView, check_removal
from puna.kvcache.saved import Saved
from puna.kvcache.storage import CellCache, KVShape, LayerStorage
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.ops import Array, Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Image:
    """An image's position, and its entries [begin, end) in the list of its sequence's cells."""

    position: int
    begin: int
    end: int


class EncoderCache(CellCache):
    """Keys and values of the images of `sequences` sequences, at most `longest` entries each.

    An image is the payload of one row and has `entries(payload)` keys. A layer `put`s the keys of all images
    of the batch, in order, or nothing if there are none. A row sees the last image at or before its position,
    and the images directly before that one. Rows before any image see nothing: their `counts` are 0, and
    cross-attention must leave them unchanged. An image is removed with its position. Its keys do not depend
    on the position, so moving it costs nothing.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Mapping[int, KVShape],
        *,
        sequences: int,
        longest: int,
        entries: Callable[[Any], int],
        types: KVTypes = F16_TYPES,
        of_text: bool = False,
    ) -> None:
        """If `of_text`, payloads are texts instead of images, and `longest` is the context."""
        super().__init__(ops, shapes, sequences=sequences, longest=longest, capacity=None, types=types)
        self._layers = {index: _Layer(self, index, stored) for index, stored in self.storage.layers.items()}
        self._entries = entries
        self._of_text = of_text
        self._images: list[list[_Image]] = [[] for _ in range(sequences)]
        self._lengths = [0] * sequences
        self._before: dict[int, tuple[int, int]] = {}  # before the last pass: length, images
        self._passes = 0
        self._new_cells = self._starts = self._counts = ops.array(np.empty(0, np.int32))

    @property
    def generation(self) -> int | None:
        return None  # a pass differs with and without images

    def limit_cells(self, count: int) -> None:
        pass  # the limit is for positions of the text

    def _max_cells(self, sequences: int, capacity: int, batch: int) -> int:
        return capacity if self._of_text else sequences * self.cells.longest

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        longest = longest if self._of_text else self.cells.longest
        return super().bookkeeping_bytes(sequences=sequences, longest=longest, capacity=sequences * longest)

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        longest = longest if self._of_text else self.cells.longest
        return super().is_countable(sequences=sequences, longest=longest, capacity=sequences * longest)

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        longest = longest if self._of_text else self.cells.longest
        return super().reserved_bytes(sequences=sequences, longest=longest, capacity=sequences * longest)

    def images(self, sequence: int) -> list[int]:
        """Return the positions of a sequence's images."""
        return [image.position for image in self._images[sequence]]

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        positions = batch.positions.tolist()
        sizes: list[tuple[int, int, int]] = []  # sequence, position, entries
        fill = self.cells.length.tolist()
        for row, payload in batch.payloads:
            sequence, size = int(batch.sequences[row]), self._entries(payload)
            fill[sequence] += size
            if fill[sequence] > self.cells.longest:
                raise CacheFullError(
                    f"the image at position {positions[row]} has {size} entries, and sequence {sequence} "
                    f"holds {fill[sequence] - size} of at most {self.cells.longest}; send fewer images"
                )
            sizes.append((sequence, positions[row], size))
        self.cells.check_room(sum(size for _, _, size in sizes), self.cells.free)
        return partial(self._begin, batch.sequences, batch.positions, sizes)

    def _begin(
        self, sequences: NDArray[np.int32], positions: NDArray[np.int32], sizes: list[tuple[int, int, int]]
    ) -> None:
        ends = [
            *((np.diff(sequences) != 0).nonzero()[0] + 1).tolist(),
            len(sequences),
        ]  # of sequences' rows
        present: list[int] = sequences[np.array(ends) - 1].tolist()
        self._before = {s: (self._lengths[s], len(self._images[s])) for s in present}
        self._passes += 1
        placed = self._allocate(sum(size for _, _, size in sizes))
        used = 0
        for sequence, position, size in sizes:
            begin = int(self.cells.length[sequence])
            entries = np.arange(begin, begin + size, dtype=np.int32)
            self.cells.append(np.full(size, sequence, np.int32), entries, placed[used : used + size])
            self._images[sequence].append(_Image(position, begin, begin + size))
            used += size
        self._new_cells = self._ops.array(placed)
        seen = np.zeros((2, len(sequences)), dtype=np.int32)
        begin = 0
        for sequence, end in zip(present, ends, strict=True):
            if self._images[sequence]:
                seen[:, begin:end] = self._seen(sequence, positions[begin:end])
            self._lengths[sequence] = int(positions[end - 1]) + 1
            begin = end
        self._starts, self._counts = self._ops.array(seen[0]), self._ops.array(seen[1])
        self._upload_table()

    def _seen(
        self, sequence: int, positions: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts in the table and counts of the entries visible at each of `positions`."""
        places: list[int] = []
        begins, ends = [0], [0]  # of the visible entries after 0, 1, ... images
        for image in self._images[sequence]:
            follows = bool(places) and image.position == places[-1] + 1
            begins.append(begins[-1] if follows else image.begin)
            ends.append(image.end)
            places.append(image.position)
        before = np.searchsorted(np.array(places), positions, side="right")
        starts = np.array(begins)[before]
        return sequence * self.cells.table.shape[1] + starts, np.array(ends)[before] - starts

    def undo_forward(self) -> None:
        for sequence, (length, count) in self._before.items():
            self._keep(sequence, self._images[sequence][:count])
            self._lengths[sequence] = length
        self._before = {}

    def _keep(self, sequence: int, images: list[_Image]) -> None:
        """Forget all images of a sequence but `images`, its first ones."""
        self._images[sequence] = images
        self.cells.truncate(sequence, images[-1].end if images else 0)

    def layer(self, index: int) -> _Layer:
        return self._layers[index]

    def room(self, wanted: int) -> int:
        return wanted  # only images take cells, and every sequence has its own share

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        images = [image for image in self._images[source] if image.position < count]
        self.cells.share(source, target, images[-1].end if images else 0)
        self._images[target] = images
        self._lengths[target] = min(count, self._lengths[source])

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        length = self._lengths[sequence]
        check_removal(sequence, begin, end)
        return partial(
            self._remove, sequence, min(begin, length), length if end is None else min(end, length)
        )

    def _remove(self, sequence: int, begin: int, end: int) -> None:
        if begin >= end:
            return
        kept: list[_Image] = []
        for image in self._images[sequence]:
            if begin <= image.position < end:
                at = kept[-1].end if kept else 0
                self.cells.cut(sequence, at, at + image.end - image.begin)
            else:
                at, size = kept[-1].end if kept else 0, image.end - image.begin
                position = image.position - (end - begin if image.position >= end else 0)
                kept.append(replace(image, position=position, begin=at, end=at + size))
        self._images[sequence] = kept
        self._lengths[sequence] -= end - begin

    def resume_point(self, sequence: int, position: int) -> int:
        return min(position, self._lengths[sequence])

    def _positions(self, sequence: int) -> list[int]:
        return [image.position for image in self._images[sequence] for _ in range(image.begin, image.end)]

    def save(self, sequence: int) -> Saved:
        cells = self.cells.cells(sequence)
        images = [number for i in self._images[sequence] for number in (i.position, i.begin, i.end)]
        return Saved(self.storage.read(cells), {"images": images, "length": [self._lengths[sequence]]})

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        numbers, cells = saved.fact("images"), self.cells
        damaged = CacheFileError("the saved images are inconsistent; the file is damaged")
        if len(numbers) % 3:
            raise damaged
        images = [_Image(*numbers[i : i + 3]) for i in range(0, len(numbers), 3)]
        count = place = 0
        for image in images:  # consecutive in the text and in the cells
            if not (place <= image.position < saved.length and image.begin == count < image.end):
                raise damaged
            count, place = image.end, image.position + 1
        self.storage.check_fits(saved, count)
        if count > cells.longest:
            raise CacheFullError(
                f"images of {count} entries were saved, and there is room for {cells.longest}"
            )
        self._check_room_instead(sequence, count)
        return partial(self._restore, sequence, images, saved)

    def _restore(self, sequence: int, images: list[_Image], saved: Saved) -> None:
        self._keep(sequence, [])
        placed = self._allocate(images[-1].end if images else 0)
        self.cells.put(sequence, 0, placed)
        self.storage.write(placed, saved)
        self._images[sequence] = images
        self._lengths[sequence] = saved.length

    def close(self) -> None:
        self._layers.clear()
        super().close()


class _Layer:
    """One cross-attention layer's cells during a pass."""

    def __init__(self, cache: EncoderCache, index: int, stored: LayerStorage) -> None:
        self._cache = cache
        self._index = index
        self._put_in_pass = 0
        self._stored = stored

    def put(self, keys: Array, values: Array | None) -> None:
        """Store the keys [entries, kv_heads, key_dim] and values of the batch's images."""
        cells = self._cache._new_cells
        entries, given = len(cells), len(keys if values is None else values)
        if len(keys) != entries or given != entries:
            raise ValueError(
                f"the images of this batch have {entries} entries, got {len(keys)} keys and {given} values"
            )
        self._stored.put(self._cache._ops, cells, keys, values)
        self._put_in_pass = self._cache._passes

    def view(self) -> KVView:
        cache = self._cache
        if len(cache._new_cells) and self._put_in_pass != cache._passes:
            raise ValueError(
                f"layer {self._index} has not been given the images of this pass; put comes before view"
            )
        return self._stored.view(cache._cell_table, cache._starts, cache._counts)
