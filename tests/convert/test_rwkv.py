"""ARWKV with its published names, which differ from those of its reference, is converted and run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType
from puna.model.load import load_model
from tests.convert.checkpoints import save_tokenizer
from tests.model.models.parity import (
    check_close,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.rwkv import TinyRwkv

#: Ranks of the published code; config.json does not state them.
RANKS = {"decay_low_rank_dim": 64, "a_low_rank_dim": 64, "v_low_rank_dim": 32, "gate_low_rank_dim": 128}
ARWKV = {gated: TinyRwkv(architecture="arwkv7", seed=83, gated=gated, ranks=RANKS) for gated in (False, True)}
_MODULES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn": "mlp",
    "attn.g_norm": "self_attn.time_mixer.ln_x", "attn.r_proj": "self_attn.time_mixer.receptance",
    "attn.k_proj": "self_attn.time_mixer.key", "attn.v_proj": "self_attn.time_mixer.value",
    "attn.o_proj": "self_attn.time_mixer.output", "attn": "self_attn.time_mixer",
}  # fmt: skip


def save_arwkv(folder: Path, tiny: TinyRwkv, model: Any) -> Path:
    """Save `model` with the names and settings of ARWKV 7B; return the folder."""
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for name, values in model.state_dict().items():
        if low := re.fullmatch(r"(model\.layers\.\d+)\.attn\.(.)_lora\.lora\.(.)\.(.*)", name):
            number = 0 if low[4] == "bias" else {"0": 1, "2": 2}[low[3]]
            turned = values.reshape(1, 1, -1) if number == 0 else values.T.contiguous()
            tensors[f"{low[1]}.self_attn.time_mixer.{low[2]}{number}"] = turned
            continue
        name = name.replace("model.embeddings", "model.embed_tokens")
        for theirs, published in _MODULES.items():
            name = re.sub(rf"(?<=\d\.){re.escape(theirs)}(?=\.)", published, name)
        tensors[name] = values.reshape(1, 1, -1) if name.endswith(("k_k", "k_a")) else values
    hidden = tiny.hidden
    for number, shape in enumerate([(1, 1, hidden), (hidden, 32), (32, hidden)]):  # unused
        tensors[f"model.layers.0.self_attn.time_mixer.v{number}"] = torch.ones(shape)
    for layer in range(3):
        tensors.setdefault(f"model.layers.{layer}.self_attn.time_mixer.x_g", torch.ones(1, 1, hidden))
    save_file(tensors, folder / "model.safetensors")
    config = model.config
    settings = {
        "architectures": ["RwkvHybridForCausalLM"], "model_type": "rwkv_hybrid", "hidden_size": hidden,
        "head_size": tiny.dim, "head_size_divisor": 8, "num_wkv_heads": hidden // tiny.dim,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e6,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_hidden_layers,
        "rms_norm_eps": 1e-5, "vocab_size": config.vocab_size, "tie_word_embeddings": False,
        "wkv_has_gate": tiny.gated, "wkv_has_group_norm": tiny.gated, "wkv_version": 7, "wkv_layers": "full",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("gated", ARWKV, ids=["plain", "gated"])
def test_arwkv_computes_the_log_probabilities_of_its_reference(gated: bool, tmp_path: Path) -> None:
    theirs = original(ARWKV[gated])
    folder = save_arwkv(tmp_path / "checkpoint", ARWKV[gated], theirs)
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 24, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [24]), reference_log_probabilities(theirs, tokens))


@pytest.mark.parametrize(
    "changes", [{"wkv_version": 6}, {"wkv_layers": [0, 2]}, {"head_size_divisor": 4}], ids=str
)
def test_arwkv_variants_other_than_the_published_one_are_refused(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    path = save_arwkv(tmp_path / "checkpoint", ARWKV[False], original(ARWKV[False])) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConversionError, match="no supported variant has these settings"):
        convert(path.parent, tmp_path / "m.gguf")
