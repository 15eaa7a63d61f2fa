"""Sizes of indexers: what a file states, and what is left of it within a short context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.errors import ModelError
from puna.gguf import GGUFFile, GGUFWriter, open_gguf
from puna.model.indexers import check_indexer, lenders_of, read_indexer, stated_choosers, within_context


def opened(path: Path, **settings: Any) -> GGUFFile:
    writer = GGUFWriter(path / "some.gguf", "some")
    for key, value in settings.items():
        writer.add(f"some.{key.replace('__', '.')}", value)
    writer.add_tensor("blk.0.indexer.k_norm.weight", np.zeros(24, np.float32))
    writer.add_tensor("blk.0.indexer.q_proj.weight", np.zeros((48, 64), np.float32))
    writer.write()
    return open_gguf(path / "some.gguf")


@pytest.mark.parametrize(
    ("most", "group", "context", "expected"),
    [
        (2048, 1, 4096, 2048),
        (2048, 1, 512, 512),
        (64, 4, 64, 64),
        (64, 4, 61, 64),  # a last group that is not whole has room, too
        (64, 4, 30, 32),
        (64, 4, None, 64),
    ],
)
def test_no_more_is_chosen_than_the_context_has(
    tmp_path: Path, most: int, group: int, context: int | None, expected: int
) -> None:
    with opened(tmp_path, **({} if context is None else {"context_length": context})) as file:
        assert within_context(file, most, group) == expected


def test_layers_use_the_choice_of_the_latest_that_has_an_indexer(tmp_path: Path) -> None:
    assert lenders_of([True, False, True, False, False, True]) == [0, 0, 2, 2, 2, 5]
    with opened(tmp_path) as file:
        assert stated_choosers(file, 3) is None
    with opened(tmp_path, attention__indexer__types=[True, False, True]) as file:
        assert stated_choosers(file, 3) == (True, False, True)
    with (
        opened(tmp_path, attention__indexer__types=[False, True, True]) as file,
        pytest.raises(ModelError, match="types' has no indexer for the first layer"),
    ):
        stated_choosers(file, 3)


def test_tensors_must_have_the_stated_sizes(tmp_path: Path) -> None:
    stated = {"attention__indexer__head_count": 2, "attention__indexer__key_length": 24}
    with opened(tmp_path, **stated) as file:
        assert read_indexer(file) == (2, 24)
        check_indexer(file, 0, 2, 24, query="indexer.q_proj")
        check_indexer(file, 0, 3, 24)  # tensors that are missing are reported when they are loaded
        with pytest.raises(ModelError, match="key_length' is 25, but tensor 'blk"):
            check_indexer(file, 0, 2, 25, query="indexer.q_proj")
        with pytest.raises(ModelError, match="key_length' is 3 x 24, but tensor 'blk"):
            check_indexer(file, 0, 3, 24, query="indexer.q_proj")
