"""Whole files: every number and key, memory, progress, parts of a split model, and refusals."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from puna.errors import GGUFError, RequestError
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType, open_gguf, quantize
from puna.quantize import merge_parts, quantize_file


def source(path: Path, rows: int = 4, kind: GGMLType = GGMLType.F16) -> Path:
    random = np.random.default_rng(2)
    writer = GGUFWriter(path, "llama")
    writer.add("general.file_type", 1, ValueType.UINT32)
    writer.add("odd", 7, ValueType.UINT64)
    writer.add("clip.vision", [1, 2], ValueType.INT8)
    writer.add("llama.block_count", 1)
    writer.add_tensor("output_norm.weight", random.standard_normal(256))
    writer.add_tensor("blk.0.ffn_up.weight", random.standard_normal((rows, 256)), kind)
    writer.add_tensor("blk.0.ffn_up_exps.weight", random.standard_normal((3, 2, 256)), kind)
    writer.write()
    return path


def test_tensors_get_the_types_of_the_mixture_and_keys_stay(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_gguf(source(tmp_path / "in.gguf")) as file:
        quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_S, report=lambda *step: seen.append(step))
        total = sum(tensor.nbytes for tensor in file.tensors.values())
        expected = quantize(file.array("blk.0.ffn_up_exps.weight"), GGMLType.Q4_K).reshape(-1)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    read = gguf.GGUFReader(tmp_path / "out.gguf")
    tensors = {tensor.name: tensor for tensor in read.tensors}
    assert {name: tensor.tensor_type.name for name, tensor in tensors.items()} == {
        "output_norm.weight": "F32",
        "blk.0.ffn_up.weight": "Q4_K",
        "blk.0.ffn_up_exps.weight": "Q4_K",
    }
    assert tensors["blk.0.ffn_up_exps.weight"].data.tobytes() == expected.tobytes()
    assert read.fields["general.file_type"].contents() == FileType.Q4_K_S
    assert read.fields["llama.odd"].types == [gguf.GGUFValueType.UINT64]
    assert read.fields["llama.clip.vision"].types[-1] == gguf.GGUFValueType.INT8


def test_each_expert_uses_its_own_importance(tmp_path: Path) -> None:
    from puna.quantize.importance import Importance

    measured = np.exp(np.random.default_rng(4).standard_normal((3, 256))).astype(np.float32)
    importance = Importance(tmp_path / "i", 5, {"blk.0.ffn_up_exps.weight": measured})
    with open_gguf(source(tmp_path / "in.gguf")) as file:
        quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_S, importance)
        experts = file.array("blk.0.ffn_up_exps.weight")
    expected = [quantize(expert, GGMLType.Q4_K, row) for expert, row in zip(experts, measured, strict=True)]
    with open_gguf(tmp_path / "out.gguf") as out:
        assert out.data("blk.0.ffn_up_exps.weight").tobytes() == b"".join(part.tobytes() for part in expected)
        assert out.metadata["quantize.imatrix.chunks_count"] == 5


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = source(tmp_path / "in.gguf", rows=1 << 16)  # 67 MB as float32
    tracemalloc.start()
    try:
        with open_gguf(path) as file:
            quantize_file(file, tmp_path / "out.gguf", FileType.Q8_0)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


def test_a_quantised_model_is_refused_unless_again_is_set(tmp_path: Path) -> None:
    with open_gguf(source(tmp_path / "in.gguf", kind=GGMLType.Q8_0)) as file:
        with pytest.raises(RequestError, match=r"only supported for F16, BF16 and F32 .* as Q8_0 already"):
            quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_M)
        assert not (tmp_path / "out.gguf").exists()
        quantize_file(file, tmp_path / "same.gguf", FileType.Q8_0)
        quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_M, again=True)
    with open_gguf(tmp_path / "out.gguf") as out:
        assert out.tensor("blk.0.ffn_up.weight").type is GGMLType.Q4_K


def test_mxfp4_tensors_keep_their_bytes(tmp_path: Path) -> None:
    with open_gguf(source(tmp_path / "in.gguf", kind=GGMLType.MXFP4)) as file:
        quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_M)
        stored = file.data("blk.0.ffn_up.weight").tobytes()
    with open_gguf(tmp_path / "out.gguf") as out:
        assert out.data("blk.0.ffn_up.weight").tobytes() == stored


def test_a_non_finite_tensor_is_named_and_no_file_is_left(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "in.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.full((2, 256), np.inf))
    writer.write()
    with (
        open_gguf(tmp_path / "in.gguf") as file,
        pytest.raises(GGUFError, match=r"in.gguf: tensor 'blk.0.ffn_up.weight': values that are not finite"),
    ):
        quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_M)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_parts_of_a_split_model_become_one_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=1)
    values = {name: np.random.default_rng(0).random((2, 32), np.float32) for name in ("a", "b", "c")}
    for name, array in values.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("*-of-*.gguf"))
    assert len(parts) == 3
    with open_gguf(parts[1]) as file:
        merge_parts(file, tmp_path / "whole.gguf")
    with open_gguf(tmp_path / "whole.gguf") as whole:
        assert {name: whole.array(name).tolist() for name in whole.tensors} == {
            name: array.tolist() for name, array in values.items()
        }
        assert not [key for key in whole.metadata if key.startswith("split.")]


def test_a_full_disk_is_noticed_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    path = source(tmp_path / "in.gguf")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with (
        open_gguf(path) as file,
        pytest.raises(GGUFError, match=r"this disk has only 0\.0 GB"),
    ):
        quantize_file(file, tmp_path / "out.gguf", FileType.Q4_K_M)
    assert not (tmp_path / "out.gguf").exists()
