"""Quantised files have the tensor types of llama.cpp's, and errors no larger."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.gguf import GGUFWriter, open_gguf
from puna.quantize import file_type_of, quantize_file, read_importance
from puna.quantize.mixture import MOSTLY

pytestmark = pytest.mark.peers
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

KINDS = [kind.label for kind in MOSTLY if kind.label not in ("F32", "Q2_K_S")]


def write_model(path: Path, layers: int, hidden: int, wide: int, rows: int, **keys: Any) -> Path:
    """Write a file with a Llama's tensors, their matrices of `rows` rows, and heavy-tailed values."""
    random = np.random.default_rng(layers + hidden)
    writer = GGUFWriter(path, keys.pop("architecture", "llama"))
    experts, tied, fused = keys.pop("experts", 0), keys.pop("tied", False), keys.pop("fused", False)
    known = {"block_count": layers, "context_length": 64, "embedding_length": hidden, "vocab_size": 64}
    known |= {"feed_forward_length": wide, "attention.head_count": 8, "attention.head_count_kv": 2}
    known |= {"expert_count": experts, "expert_used_count": 2} if experts else {}
    for key, value in (known | {key.replace("__", "."): value for key, value in keys.items()}).items():
        writer.add(key, value)
    writer.add("attention.layer_norm_rms_epsilon", 1e-5)

    def add(name: str, *shape: int) -> None:
        values = random.standard_t(4, shape) * np.exp(random.standard_normal((*shape[:-1], 1)))
        writer.add_tensor(f"{name}.weight", (0.02 * values).astype(np.float32))

    add("token_embd", rows, hidden)
    add("output_norm", hidden)
    if not tied:
        add("output", rows, hidden)
    for layer in range(layers):
        at = f"blk.{layer}"
        for name in ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v"):
            add(f"{at}.{name}", rows, hidden)
        add(f"{at}.attn_output", rows, hidden)
        add(f"{at}.attn_norm", hidden)
        if experts:
            add(f"{at}.ffn_gate_inp", experts, hidden)
            for name, columns in (("gate", hidden), ("up", hidden), ("down", wide)):
                add(f"{at}.ffn_{name}_exps", experts, rows, columns)
        else:
            for name, columns in (("gate", hidden), ("up", hidden), ("down", wide)):
                add(f"{at}.ffn_{name}", rows, columns)
    writer.write()
    return path


MODELS: dict[str, dict[str, Any]] = {
    "plain": {"layers": 17, "hidden": 256, "wide": 512},
    "fused and tied": {"layers": 5, "hidden": 256, "wide": 512, "fused": True, "tied": True},
    "eight experts": {"layers": 9, "hidden": 256, "wide": 256, "experts": 8},
    "four experts, no sharing": {
        "layers": 9, "hidden": 256, "wide": 256, "experts": 4, "attention__head_count_kv": 8,
    },
    "odd rows": {"layers": 9, "hidden": 96, "wide": 48},
    "seventy billion": {"layers": 80, "hidden": 256, "wide": 32},
    "qwen of that size": {"layers": 80, "hidden": 32, "wide": 256, "architecture": "qwen2"},
}  # fmt: skip


def quantize_with_llama_cpp(
    source: Path, target: Path, kind: str, weights: dict[str, np.ndarray] | None = None
) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = int(file_type_of(kind)), 2
    if weights:
        struct = importlib.import_module("llama_cpp.llama_cpp").llama_model_imatrix_data
        items = (struct * (len(weights) + 1))()
        for item, (name, values) in zip(items, weights.items(), strict=False):
            item.name, item.size = name.encode(), values.size
            item.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = items
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_gets_the_type_llama_cpp_gives_it(model: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf", rows=2, **MODELS[model])
    for kind in KINDS:
        quantize_with_llama_cpp(source, tmp_path / "theirs.gguf", kind)
        with open_gguf(source) as file:
            quantize_file(file, tmp_path / "ours.gguf", file_type_of(kind))
        with open_gguf(tmp_path / "ours.gguf") as ours, open_gguf(tmp_path / "theirs.gguf") as theirs:
            types = {name: tensor.type.name for name, tensor in ours.tensors.items()}
            assert types == {name: tensor.type.name for name, tensor in theirs.tensors.items()}, kind
            assert list(ours.tensors) == list(theirs.tensors), kind
            assert {key: ours.encoded(key) for key in ours.metadata} == {
                key: theirs.encoded(key) for key in theirs.metadata
            }, kind


def weighted_error(values: np.ndarray, exact: np.ndarray, weights: np.ndarray | float) -> float:
    return float(np.sqrt((np.square(values - exact) * weights).mean() / (np.square(exact) * weights).mean()))


@pytest.mark.parametrize("measured", [False, True], ids=["alone", "with importance"])
def test_errors_are_at_most_two_percent_larger_than_those_of_llama_cpp(
    measured: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "in.gguf", layers=3, hidden=1024, wide=1024, rows=128)
    random = np.random.default_rng(5)
    with open_gguf(source) as file:
        exact = {name: file.array(name) for name, tensor in file.tensors.items() if len(tensor.shape) > 1}
        weights = {
            name: np.exp(random.standard_normal(array.shape[-1])).astype(np.float32)
            for name, array in exact.items()
            if measured
        }
        importance = None
        if measured:
            importance = read_importance(write_importance(tmp_path / "imatrix.gguf", weights))
        for kind in KINDS:
            quantize_with_llama_cpp(source, tmp_path / "theirs.gguf", kind, weights)
            quantize_file(file, tmp_path / "ours.gguf", file_type_of(kind), importance)
            with open_gguf(tmp_path / "ours.gguf") as ours, open_gguf(tmp_path / "theirs.gguf") as theirs:
                ratios = [
                    weighted_error(ours.array(name), values, weights.get(name, 1.0))
                    / max(weighted_error(theirs.array(name), values, weights.get(name, 1.0)), 1e-9)
                    for name, values in exact.items()
                ]
            with capsys.disabled():
                print(
                    f"\n{kind}: {np.mean(ratios):.3f} of llama.cpp's error, at most {max(ratios):.3f}", end=""
                )
            assert max(ratios) <= 1.02, kind


def write_importance(path: Path, weights: dict[str, np.ndarray]) -> Path:
    """Write an importance matrix with these mean squares."""
    writer = GGUFWriter(path, "imatrix")
    writer.add("general.type", "imatrix")
    for name, values in weights.items():
        writer.add_tensor(f"{name}.in_sum2", (values * 4).reshape(1, -1))
        writer.add_tensor(f"{name}.counts", np.full((1, 1), 4, np.float32))
    writer.write()
    return path
