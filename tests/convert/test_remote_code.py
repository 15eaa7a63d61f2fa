"""Settings of models that transformers lacks: converted, or refused where files cannot carry them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.convert import check_convertible, convert
from puna.convert.config import Config
from puna.convert.families.remote_code import BAICHUAN
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.tiny.remote_code import CHECKPOINTS

#: A model, changes of its settings (None removes one), and a part of the message.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "baichuan of another size": ("baichuan alibi", {"num_hidden_layers": 33}, "layers"),
    "baichuan, other activation": ("baichuan rotated", {"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
    "refact, key for each head": ("refact", {"multi_query": False}, "'multi_query' is False"),
    "jais, usual scale": ("jais", {"mup_scale_qk_dot_by_d": False}, "divided by the size of a head"),
    "jais, scale not stated": ("jais", {"mup_scale_qk_dot_by_d": None}, "divided by the size of a head"),
    "jais, other activation": ("jais", {"activation_function": "gelu_new"}, "'gelu_new'"),
    "jais, activation not stated": ("jais", {"activation_function": None}, "'gelu_new'"),
    "jais, learned positions": ("jais", {"position_embedding_type": "learned"}, "'learned'"),
    "jais, scaled slopes": ("jais", {"alibi_scaling": {"type": "linear", "factor": 2.0}}, "factor"),
    "jais, slopes scaled early": (
        "jais",
        {"alibi_scaling": {"type": "linear", "train_seq_len": 128}},
        "train_seq_len",
    ),
    "openelm without gates": ("openelm", {"ffn_with_glu": False}, "ffn_with_glu"),
    "openelm, norms not stated": (
        "openelm",
        {"normalize_qk_projections": None},
        "'normalize_qk_projections' is False",
    ),
    "openelm, heads of two layers": ("openelm", {"num_query_heads": [2, 6]}, "not a value for each layer"),
    "openelm, one number": ("openelm", {"ffn_multipliers": 4.0}, "not a value for each layer"),
    "grok, late positions": ("grok", {"attn_temperature_len": 1024}, "attn_temperature_len"),
    "grok, rotation of grok 2": ("grok", {"rope_type": "original"}, "rope_type"),
    "grok, half rotated": ("grok", {"rope_rotate_half_dims": True}, "rope_rotate_half_dims"),
    "arctic, one expert": ("arctic", {"num_experts_per_tok": 1}, "add up to 1"),
    "arctic, experts not stated": ("arctic", {"num_experts_per_tok": None}, "add up to 1"),
    "arctic, experts in some layers": ("arctic", {"moe_layer_frequency": None}, "moe_layer_frequency"),
    "arctic, one after the other": (
        "arctic",
        {"parallel_attn_mlp_res": False},
        "'parallel_attn_mlp_res' is False",
    ),
    "arctic, window": ("arctic", {"sliding_window": 64}, "sliding_window"),
}


def changed(folder: Path, name: str, changes: dict[str, Any]) -> Path:
    """Save the model `name` with changed settings; None removes one. Return the folder."""
    saved(folder, original(CHECKPOINTS[name]))
    path = folder / "config.json"
    settings = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_files_cannot_carry_are_refused(case: str, tmp_path: Path) -> None:
    name, changes, message = REFUSED[case]
    folder = changed(tmp_path / "checkpoint", name, changes)
    with pytest.raises(ConversionError, match=message):
        check_convertible(folder)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_published_settings_are_accepted(name: str, tmp_path: Path) -> None:
    check_convertible(saved(tmp_path / "checkpoint", original(CHECKPOINTS[name])))


def test_slopes_scaled_after_the_trained_context_are_accepted(tmp_path: Path) -> None:
    scaling = {"alibi_scaling": {"type": "linear", "train_seq_len": 256}}
    check_convertible(changed(tmp_path / "checkpoint", "jais", scaling))


@pytest.mark.parametrize("name", ["jais", "jais other slopes, tied, older settings"])
def test_slopes_of_jais_become_an_exponent(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", original(CHECKPOINTS[name]))
    convert(folder, tmp_path / "model.gguf", FileType.F32)
    with open_gguf(tmp_path / "model.gguf") as file:
        assert file.get("attention.max_alibi_bias") == (8.0 if name == "jais" else 6.0)


@pytest.mark.parametrize("change", [lambda slopes: slopes[:2], lambda slopes: slopes.flip(0) ** 2])
def test_other_slopes_of_jais_are_refused(change: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", original(CHECKPOINTS["jais"]))
    tensors = load_file(folder / "model.safetensors")
    slopes = "transformer.relative_pe.slopes"
    save_file({**tensors, slopes: change(tensors[slopes]).contiguous()}, folder / "model.safetensors")
    with pytest.raises(ConversionError, match="slopes"):
        check_convertible(folder)


@pytest.mark.parametrize(("rows", "normalised"), [(125_696, True), (64_000, False)])
def test_output_of_baichuan_2_is_normalised(rows: int, normalised: bool) -> None:
    values = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    found = BAICHUAN.changes["output.weight"](values.numpy(), Config({"vocab_size": rows}))
    expected = torch.nn.functional.normalize(values) if normalised else values
    assert torch.allclose(torch.from_numpy(found), expected)
