"""Tiles chosen by measuring them on a device, once, and kept in a file.

Only tiles for many rows are chosen, so that the steps of decoding keep their bits. The last digits of a
prompt's results may change when a device is tuned: other tiles are rounded and added up differently.
Triton's own tuner would measure when a kernel is first launched, in the middle of a request or a recording,
and as long as it takes.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import triton
from triton.runtime.errors import OutOfResources, PTXASError

from puna.config import env_bool, home
from puna.gguf import GGMLType
from puna.ops.gpu.kernels import matmul
from puna.ops.gpu.kernels.tiles import ManyTiles, Tiles, tiles_for, use
from puna.ops.gpu.packed import PackedMatrix

_log = logging.getLogger("puna.gpu")

#: No tiles are tried any more after so many seconds; the next load goes on with the others.
_MOST_S: Final = 20.0
#: Other tiles must be this much faster than the usual ones.
_GAIN: Final = 0.95
_REPEATS: Final = 5

#: Tiles to try; those that do not fit a device are left out.
_UNPACKED: Final = tuple(
    ManyTiles(*sizes, programs=264)
    for sizes in ((128, 64, 4, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 128, 4, 3), (128, 32, 4, 3))
)
_DENSE: Final = tuple(
    ManyTiles(*sizes)
    for sizes in ((128, 128, 8, 3), (128, 256, 8, 3), (128, 128, 8, 4), (128, 128, 4, 3), (64, 128, 4, 4))
)


@dataclass(frozen=True)
class TunedProduct:
    """A kind of product whose tiles are chosen, and one that stands for it."""

    name: str  # field of `Tiles`
    type: GGMLType
    rows: int  # of x
    candidates: tuple[ManyTiles, ...]


FORMS: Final = (
    TunedProduct("many", GGMLType.Q4_K, 128, _UNPACKED),
    TunedProduct("dense", GGMLType.F16, 2048, _DENSE),
    TunedProduct("many_wide", GGMLType.Q6_K, 128, _UNPACKED),
)
#: Size of the matrix, a usual one of models of 8 billion weights.
_SIZE: Final = 4096

#: Seconds that a form takes with some tiles; infinite if they do not fit.
Measure = Callable[[TunedProduct, ManyTiles], float]
#: Tiles by the names of forms.
Chosen = Mapping[str, ManyTiles]


def tune(device: torch.device) -> None:
    """Use the best tiles for many rows on `device`, measuring those that no earlier process has.

    `PUNA_GPU_TUNE=0` leaves the usual ones. What fails is logged, and the usual tiles stay.
    """
    if not env_bool("GPU_TUNE", True):
        return
    usual, path = tiles_for(device), home() / "gpu-tiles.json"
    key = f"{torch.cuda.get_device_name(device)}, Triton {triton.__version__}, {_digest(usual)}"
    known, began = read(path, key), time.monotonic()
    try:
        found = choose(usual, known, _on(device), began + _MOST_S)
    except Exception:
        use(device, usual)
        _log.warning("measuring the kernels' tiles failed; the usual ones are used", exc_info=True)
        return
    use(device, with_chosen(usual, found))
    if found != known:
        _log.info("chose the tiles of %s in %.1f s", key, time.monotonic() - began)
        write(path, key, found)


def choose(
    usual: Tiles,
    known: Chosen,
    measure: Measure,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> Chosen:
    """Return `known` and the best tiles of other forms, as many as can be measured before `deadline`."""
    found = dict(known)
    for form in FORMS:
        if form.name not in found and (best := _best(form, usual, measure, lambda: clock() > deadline)):
            found[form.name] = best
    return found


def _best(
    form: TunedProduct, usual: Tiles, measure: Measure, is_late: Callable[[], bool]
) -> ManyTiles | None:
    """Return the best tiles of a form; None if the time does not suffice."""
    first: ManyTiles = getattr(usual, form.name)
    best, fastest = first, float("inf")
    for tiles in (first, *(each for each in form.candidates if each != first)):
        if is_late():
            return None
        took = measure(form, tiles) * (_GAIN if tiles is first else 1)
        if took < fastest:
            best, fastest = tiles, took
    return best


def with_chosen(usual: Tiles, chosen: Chosen) -> Tiles:
    """Return `usual` with the tiles in `chosen`."""
    changes: dict[str, Any] = dict(chosen)
    return replace(usual, **changes)


def read(path: Path, key: str) -> Chosen:
    """Return what the file at `path` has under `key`; nothing that `write` has not written."""
    try:
        entry = json.loads(path.read_bytes())[key]
        return {form.name: _checked(entry[form.name]) for form in FORMS if form.name in entry}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _checked(sizes: Any) -> ManyTiles:
    rows, tokens, warps, stages, programs, splits = sizes
    powers = all(
        isinstance(size, int) and 16 <= size <= 256 and not size & (size - 1) for size in (rows, tokens)
    )
    shared = programs in range(1 << 16) and splits in range(1, 65)
    if not powers or warps not in (1, 2, 4, 8, 16) or stages not in range(1, 9) or not shared:
        raise ValueError(f"no tiles: {sizes}")
    return ManyTiles(rows, tokens, warps, stages, programs, splits)


def write(path: Path, key: str, chosen: Chosen) -> None:
    """Put `chosen` into the file at `path`; without it, the next process measures again."""
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        known = {}
    entry = {name: astuple(tiles) for name, tiles in chosen.items()}
    entries = {**known, key: entry} if isinstance(known, dict) else {key: entry}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(entries), "utf-8")
        temporary.replace(path)
    except OSError as error:
        _log.info("%s: %s", path, error)


def _digest(usual: Tiles) -> str:
    """Return text that differs between the usual tiles of versions of Puna, which may have other kernels."""
    return " ".join("x".join(map(str, astuple(getattr(usual, form.name)))) for form in FORMS)


def _on(device: torch.device) -> Measure:
    """Return the measurement of forms on a device."""
    usual = tiles_for(device)
    products: dict[str, tuple[torch.Tensor, PackedMatrix]] = {}

    def product(form: TunedProduct) -> tuple[torch.Tensor, PackedMatrix]:
        if form.name not in products:
            size = form.type.nbytes(_SIZE * _SIZE)
            data = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
            matrix = PackedMatrix.pack(data, form.type, _SIZE, _SIZE)
            products[form.name] = torch.randn(form.rows, _SIZE, device=device), matrix
        return products[form.name]

    def measure(form: TunedProduct, tiles: ManyTiles) -> float:
        x, matrix = product(form)
        changes: dict[str, Any] = {form.name: tiles}
        use(device, replace(usual, **changes))
        try:
            matmul.linear(x, matrix)
        except (OutOfResources, PTXASError):
            return float("inf")
        return median(_seconds(lambda: matmul.linear(x, matrix)))

    return measure


def _seconds(launch: Callable[[], object]) -> Iterator[float]:
    for _ in range(_REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch()
        end.record()
        end.synchronize()
        yield begin.elapsed_time(end) / 1000
