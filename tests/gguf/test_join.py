"""Joining the parts of a split model, against what the `gguf` package writes without splitting."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from puna.errors import GGUFError
from puna.gguf.writer import join


def written(folder: Path, *, tensors_each: int = 0, metadata_alone: bool = False) -> list[Path]:
    """Write a model of five tensors as one file, or in parts of `tensors_each`; return the files in order."""
    folder.mkdir()
    writer = gguf.GGUFWriter(
        folder / "model.gguf", "llama", split_max_tensors=tensors_each, small_first_shard=metadata_alone
    )
    writer.add_uint32("llama.block_count", 2)
    writer.add_int8("odd.int", -3)
    writer.add_float64("odd.float", 0.1)
    writer.add_array("odd.list", ["a", "bc"])
    writer.add_string("general.name", "five")
    for i in range(5):
        values = np.random.default_rng(i).standard_normal((3, 5 + i)).astype(np.float32)
        writer.add_tensor(f"blk.{i}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.iterdir())


@pytest.mark.parametrize("metadata_alone", [False, True])
@pytest.mark.parametrize("tensors_each", [1, 2, 4])
def test_joined_parts_equal_the_file_before_splitting(
    tmp_path: Path, tensors_each: int, metadata_alone: bool
) -> None:
    (whole,) = written(tmp_path / "whole")
    parts = written(tmp_path / "parts", tensors_each=tensors_each, metadata_alone=metadata_alone)
    assert len(parts) == -(-5 // tensors_each) + metadata_alone
    named = [part.rename(part.with_name(f"blob-{i}")) for i, part in enumerate(parts)]
    joined = bytearray()
    join(named, joined.extend)
    assert joined == whole.read_bytes()


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    parts = written(tmp_path / "parts", tensors_each=2)
    for wrong in (parts[:2], [parts[1], parts[0], parts[2]], [parts[0], parts[0], parts[2]]):
        with pytest.raises(GGUFError, match="do not belong together"):
            join(wrong, len)
    (whole,) = written(tmp_path / "whole")
    with pytest.raises(GGUFError, match="do not belong together"):
        join([whole], len)
