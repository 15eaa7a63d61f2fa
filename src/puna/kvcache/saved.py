"""One sequence of a cache on its own, ready for a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puna.errors import CacheFileError
from puna.ops.storage import Storage, stored_form

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Saved:
    """Arrays as storage has them (`Storage.read`), by names that begin with the number of a layer."""

    arrays: dict[str, NDArray[Any]]
    facts: dict[str, list[int]]  # `length` is always among them

    def fact(self, name: str) -> list[int]:
        """Raises `CacheFileError` when there is none of that name."""
        if name not in self.facts:
            raise CacheFileError(f"a cache of this kind needs '{name}', which was not saved; evaluate again")
        return self.facts[name]

    @property
    def length(self) -> int:
        """Positions of the sequence. Raises `CacheFileError` when that was not saved."""
        length = self.fact("length")
        if len(length) != 1:
            raise CacheFileError(f"a sequence has one length, not {len(length)}; the file is damaged")
        return length[0]

    def check(self, name: str, storage: Storage, count: int) -> None:
        """Raise `CacheFileError` unless `count` rows of a storage like `storage` were saved as `name`."""
        dtype, form = stored_form(storage.kind, storage.shape[1:])
        found, expected = self.arrays.get(name), (count, *form)
        if found is None or found.shape != expected or found.dtype != dtype:
            was = "nothing" if found is None else f"{list(found.shape)} {found.dtype}"
            raise CacheFileError(
                f"'{name}' is {list(expected)} {dtype} in this cache, and {was} was saved; "
                "use the same model and the same types of keys and values, or evaluate again"
            )
