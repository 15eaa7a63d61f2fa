"""Checkpoints published in scaled 8-bit floats or MXFP4 are converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.convert import convert
from puna.convert.checkpoint import decoded
from puna.errors import ConversionError
from puna.gguf import FileType, GGMLType, open_gguf
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.tiny.compressed import DEEPSEEK_V4_BLOCKS, save_published
from tests.tiny.decoders import GPT_OSS
from tests.tiny.llama import TinyLlama


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2), ("F8_E8M0", torch.float8_e8m0fnu),
    ],
)  # fmt: skip
def test_every_8_bit_float_decodes_as_in_torch(ours: str, theirs: Any) -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(theirs).float().numpy()
    np.testing.assert_array_equal(decoded(bytes(range(256)), ours), expected)


def rewrite_checkpoint(folder: Path, change: Any, settings: dict[str, Any]) -> Path:
    """Rewrite tensors of the checkpoint with `change` and add `settings` to its config; return the folder."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


@pytest.mark.parametrize("form", ["blocks", "rows", "one"])
def test_scaled_8_bit_floats_become_q8_0(form: str, tmp_path: Path) -> None:
    exact: dict[str, torch.Tensor] = {}

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = dict(tensors)
        for name, values in tensors.items():
            if name.endswith("_proj.weight"):
                rows, columns = -(-values.shape[0] // 48), -(-values.shape[1] // 32)
                shape = {"blocks": (rows, columns), "rows": (values.shape[0], 1), "one": ()}[form]
                scales = 0.5 + torch.rand(shape)
                small = values.to(torch.float8_e4m3fn)
                found[name] = small
                found[name + ("_scale_inv" if form == "blocks" else "_scale")] = scales
                each = scales
                if form == "blocks":
                    each = scales.repeat_interleave(48, 0).repeat_interleave(32, 1)
                    each = each[: values.shape[0], : values.shape[1]]
                exact[name] = small.float() * each
        return found

    settings = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 32]}}
    folder = rewrite_checkpoint(saved(tmp_path / "checkpoint", original(TinyLlama())), change, settings)
    convert(folder, tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.tensor("blk.1.attn_v.weight").type is GGMLType.Q8_0
        for theirs, ours in (("self_attn.v_proj", "attn_v"), ("mlp.down_proj", "ffn_down")):
            expected = exact[f"model.layers.1.{theirs}.weight"].numpy()
            found = file.array(f"blk.1.{ours}.weight")
            assert np.abs(found - expected).max() < 0.005 * np.abs(expected).max()


def test_mxfp4_experts_are_repacked_without_loss(tmp_path: Path) -> None:
    values = {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0, 5: 3.0, 6: 4.0, 7: 6.0}
    levels = np.array([*values.values(), *(-value for value in values.values())], np.float32)
    random = np.random.default_rng(1)
    exact: dict[str, np.ndarray] = {}

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {}
        for name, given in tensors.items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                found[name] = given
                continue
            experts, columns, rows = given.shape  # inputs, outputs
            codes = random.integers(0, 16, (experts, rows, columns // 32, 32), np.uint8)
            scales = random.integers(120, 130, (experts, rows, columns // 32), np.uint8)
            packed = codes[..., ::2] | codes[..., 1::2] << 4
            found[f"{name}_blocks"], found[f"{name}_scales"] = torch.tensor(packed), torch.tensor(scales)
            scaled = levels[codes] * 2.0 ** (scales[..., None].astype(np.float32) - 127)
            exact[name] = scaled.reshape(experts, rows, columns)
        return found

    settings = {"quantization_config": {"quant_method": "mxfp4"}}
    folder = rewrite_checkpoint(saved(tmp_path / "checkpoint", original(GPT_OSS)), change, settings)
    convert(folder, tmp_path / "m.gguf", FileType.F16)
    with open_gguf(tmp_path / "m.gguf") as file:
        both = exact["model.layers.1.mlp.experts.gate_up_proj"]
        for name, expected in (
            ("gate", both[:, ::2]), ("up", both[:, 1::2]),
            ("down", exact["model.layers.1.mlp.experts.down_proj"]),
        ):  # fmt: skip
            assert file.tensor(f"blk.1.ffn_{name}_exps.weight").type is GGMLType.MXFP4
            np.testing.assert_array_equal(file.array(f"blk.1.ffn_{name}_exps.weight"), expected)


def test_mxfp4_experts_beside_8_bit_floats_are_those_of_deepseek_v4(tmp_path: Path) -> None:
    """Published names and settings, with heads that are not loaded, and scales of both types."""
    exact = save_published(tmp_path / "checkpoint", original(DEEPSEEK_V4_BLOCKS))
    convert(tmp_path / "checkpoint", tmp_path / "m.gguf", FileType.BF16)
    with open_gguf(tmp_path / "m.gguf") as file:
        for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
            stacked = np.stack([exact[f"layers.2.ffn.experts.{i}.{theirs}.weight"] for i in range(7)])
            assert file.tensor(f"blk.2.ffn_{ours}_exps.weight").type is GGMLType.MXFP4
            np.testing.assert_array_equal(file.array(f"blk.2.ffn_{ours}_exps.weight"), stacked)
        for theirs, ours in (("attn.wq_b", "attn_q_b"), ("ffn.shared_experts.w2", "ffn_down_shexp")):
            expected = exact[f"layers.1.{theirs}.weight"]
            assert file.tensor(f"blk.1.{ours}.weight").type is GGMLType.Q8_0
            assert (
                np.abs(file.array(f"blk.1.{ours}.weight") - expected).max() < 0.005 * np.abs(expected).max()
            )
        assert file.tensor("blk.1.ffn_gate_tid2eid.weight").type is GGMLType.I32
        assert file.tensor("blk.2.indexer_compressor_ape.weight").type is GGMLType.F32
        assert "blk.1.exp_probs_b.bias" not in file.tensors
        assert list(file.get("attention.compress_ratios")) == [0, 128, 4, 4]
        assert file.get("hash_layer_count") == 2
        assert file.get("block_count") == 4
        assert file.get("rope.dimension_count") == 8
        assert file.get("rope.scaling.factor") == 4.0


@pytest.mark.parametrize("part", ["weight", "scale"])
def test_mxfp4_pairs_that_do_not_fit_their_scales_are_refused(part: str, tmp_path: Path) -> None:
    save_published(tmp_path / "checkpoint", original(DEEPSEEK_V4_BLOCKS))
    path = tmp_path / "checkpoint" / "model.safetensors"
    tensors = load_file(path)
    name = f"layers.2.ffn.experts.3.w1.{part}"
    tensors[name] = tensors[name].view(torch.uint8)[:, :1].contiguous()
    save_file(tensors, path)
    with pytest.raises(ConversionError, match=r"experts.3.w1.weight'.* do not fit scales of shape"):
        convert(tmp_path / "checkpoint", tmp_path / "m.gguf")
