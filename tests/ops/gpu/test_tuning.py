"""Tiles chosen by measuring them: by made-up times, or by those of a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from puna.ops.gpu import tuning
from puna.ops.gpu.kernels.tiles import TILES, ManyTiles, tiles_for
from puna.ops.gpu.tuning import FORMS, TunedProduct, choose, read, with_chosen, write

USUAL = TILES[0]
SOME = ManyTiles(64, 64, 4, 3, programs=264)
OTHERS = ManyTiles(128, 128, 8, 3)


def times(fast: dict[str, ManyTiles], seconds: float = 0.5) -> Callable[[TunedProduct, ManyTiles], float]:
    """Return a measurement by which some tiles take `seconds`, and all others a second."""
    return lambda form, tiles: seconds if fast.get(form.name) == tiles else 1.0


def test_the_fastest_tiles_are_chosen_and_the_usual_ones_unless_others_gain() -> None:
    fast = {"many": FORMS[0].candidates[2], "dense": FORMS[1].candidates[0]}
    found = choose(USUAL, {}, times(fast), 1.0, lambda: 0.0)
    assert found == {**fast, "many_wide": USUAL.many_wide}
    assert choose(USUAL, {}, times(fast, 0.96), 1.0, lambda: 0.0)["many"] == USUAL.many
    tiles = with_chosen(USUAL, found)
    assert (tiles.many, tiles.few) == (fast["many"], USUAL.few)


def test_what_is_known_is_not_measured_again_and_time_is_limited() -> None:
    asked: list[str] = []

    def measure(form: TunedProduct, tiles: ManyTiles) -> float:
        asked.append(form.name)
        return 1.0

    known = {"many": SOME}
    found = choose(USUAL, known, measure, 2.5, lambda: float(len(asked)))
    assert found == known, "a form is left to another time unless all its tiles were tried"
    assert set(asked) == {"dense"}
    assert len(asked) == 3
    assert {*choose(USUAL, known, measure, 1e9, lambda: 0.0)} == {form.name for form in FORMS}


def test_tiles_that_do_not_fit_are_left_out() -> None:
    fits = {"many": FORMS[0].candidates[1]}
    measure = times(fits)
    found = choose(
        USUAL, {}, lambda *given: measure(*given) if measure(*given) < 1 else float("inf"), 1.0, lambda: 0.0
    )
    assert found["many"] == fits["many"]
    assert found["dense"] == USUAL.dense


def test_the_file_has_each_device_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "puna" / "gpu-tiles.json"
    assert read(path, "one") == {}
    write(path, "one", {"many": SOME})
    write(path, "two", {"dense": OTHERS})
    assert read(path, "one") == {"many": SOME}
    assert read(path, "two") == {"dense": OTHERS}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"one": 3}', '{"one": {"many": [64, 64, 4, 3]}}',
     '{"one": {"many": [64, 65, 4, 3, 0, 8]}}', '{"one": {"many": [64, 1048576, 4, 3, 0, 8]}}',
     '{"one": {"many": [64, 64, 3, 3, 0, 8]}}', '{"one": {"many": [64, 64, 4, 3, -1, 8]}}', "\x00\xff"],
)  # fmt: skip
def test_a_damaged_file_is_no_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu-tiles.json"
    path.write_text(text, "latin-1")
    assert read(path, "one") == {}
    write(path, "one", {"many": SOME})
    assert json.loads(path.read_text())["one"] == {"many": [64, 64, 4, 3, 264, 8]}


def test_all_candidates_compute_the_same(device: torch.device) -> None:
    """On a GPU; its tiles are the usual ones afterwards."""
    if device.type != "cuda":
        pytest.skip("set PUNA_GPU_DEVICE=cuda on a machine with a GPU")
    usual = tiles_for(device)
    measure = tuning._on(device)
    try:
        for form in FORMS:
            assert 0 < measure(form, getattr(usual, form.name)) < 1
            assert any(measure(form, ManyTiles(*each)) < 1 for each in form.candidates)
    finally:
        tuning.use(device, usual)
