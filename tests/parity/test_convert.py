"""Converted models beside what llama.cpp's converter makes of the same folder: key by key, tensor by tensor.

The converter comes with the source that `make test-peers` builds llama.cpp from; LLAMA_CPP names another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from puna.convert import convert, convertible
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.model.models.test_decoders import MODELS
from tests.tiny import LLAMA3_ROPE, TinyLlama

SOURCE = Path(os.environ.get("LLAMA_CPP", ".venv-peers/llama.cpp"))
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        not (SOURCE / "convert_hf_to_gguf.py").is_file(), reason="there is no source of llama.cpp"
    ),
]

ALL: dict[str, Any] = {
    "llama": TinyLlama(),
    "llama 3": TinyLlama(tied=True, rope_scaling=LLAMA3_ROPE),
    "mixtral": TinyLlama(experts=4),
    **MODELS,
}
#: What files of ours say beyond theirs, or otherwise, and why is in docs/models-of-your-own.md.
OURS = {
    "tokenizer.ggml.eos_token_ids", "general.name", "expert_weights_norm", "norm_top_k_prob",
    "general.quantization_version", "tokenizer.ggml.pre",
}  # fmt: skip
#: What single architectures say otherwise: what is assumed there is written, and all ends are one list.
APART = {
    "starcoder2": {"attention.sliding_window"}, "deepseek2": {"expert_gating_func"},
    "falcon-h1": {"rope.dimension_count"}, "granitehybrid": {"rope.scaling.finetuned", "context_length"},
    "granitemoe": {"expert_feed_forward_length"}, "minimax-m2": {"expert_gating_func"},
    "hunyuan-dense": {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"},
    "kimi-linear": {"expert_gating_func", "expert_weights_norm"},
    "mimo2": {  # theirs always counts three heads
        "expert_gating_func", "attention.head_count_kv", "attention.sliding_window_pattern", "block_count",
        "nextn_predict_layers",
    },
    "mistral4": {"attention.temperature_scale"}, "ernie4_5-moe": {"expert_shared_feed_forward_length"},
    "nemotron_h": {"attention.layer_norm_rms_epsilon"},
    "nemotron_h_moe": {"attention.layer_norm_rms_epsilon"},
}  # fmt: skip
#: What tensors of published models are called, unlike those that transformers saves.
RENAMED = {"KimiLinearForCausalLM": {r"block_sparse_moe\.(gate|up|down)_proj": r"mlp.\1_proj"}}
#: Tensors that have another shape there: of one row, where ours is a vector.
ROWS = ("exp_probs_b.bias",)


#: What keeps their converter from reading settings by way of transformers, which completes them.
UNKNOWN = {"model_type": "as published"}


def _kimi(config: dict[str, Any]) -> dict[str, Any]:
    attends = [i for i, kind in enumerate(config["layer_types"], 1) if kind == "full_attention"]
    linear = {
        "full_attn_layers": attends, "head_dim": config["linear_head_dim"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }  # fmt: skip
    return {"linear_attn_config": linear}


def _mimo(config: dict[str, Any]) -> dict[str, Any]:
    same = "head_dim", "num_attention_heads", "v_head_dim"
    kinds = config["layer_types"]
    return {
        **UNKNOWN, **{f"swa_{name}": config[name] for name in same}, "topk_method": "noaux_tc",
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "layer_types": None, "rope_parameters": None, "rope_theta": 5e6, "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "sliding_window": config["sliding_window"] - 1,
    }  # fmt: skip


def _nemotron(config: dict[str, Any]) -> dict[str, Any]:
    kinds = config["layers_block_type"]
    if "moe" in kinds:
        return {}
    letters = {"linear_attention": "M", "mlp": "-", "full_attention": "*"}
    lacking = "layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"
    return {
        **UNKNOWN, **dict.fromkeys(lacking), "num_hidden_layers": len(kinds),
        "hybrid_override_pattern": "".join(letters[kind] for kind in kinds),
    }  # fmt: skip


#: What config.json says of published models that transformers does not save; None: what those lack.
PUBLISHED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Cohere2ForCausalLM": lambda config: {"rotary_pct": 1.0},
    "Glm4MoeForCausalLM": lambda config: {"num_nextn_predict_layers": 0},
    "GraniteMoeHybridForCausalLM": lambda config: {
        "layer_types": [{"full_attention": "attention"}.get(kind, "mamba") for kind in config["layer_types"]]
    },
    "KimiLinearForCausalLM": _kimi,
    "MiMoV2FlashForCausalLM": _mimo,
    "Mistral4ForCausalLM": lambda config: {"architectures": ["Mistral3ForConditionalGeneration"]},
    "NemotronHForCausalLM": _nemotron,
}
#: What theirs alone say: guesses from names of folders, and what has no meaning for the architecture.
THEIRS = (
    "general.size_label", "general.basename", "general.finetune", "general.version", "general.organization",
    "general.tags", "general.languages", "general.license", "general.name", "general.sampling",
)  # fmt: skip

#: Their converter knows a pre-tokenizer by what it makes of a text, for a table of vocabularies.
SCRIPT = """
import sys
source, folder, out, *more = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
import conversion
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
import transformers
transformers.AutoTokenizer = transformers.PreTrainedTokenizerFast  # others add tokens to what is published
found = conversion.get_model_class

def of_tiny_tokenizer(name, mmproj=False):
    kind = found(name, mmproj)
    if not mmproj:
        kind.set_vocab = base.TextModel._set_vocab_gpt2
    return kind

conversion.get_model_class = of_tiny_tokenizer
import convert_hf_to_gguf
sys.argv = ["convert", folder, "--outfile", out, "--outtype", "f32", *more]
convert_hf_to_gguf.main()
"""


def theirs(folder: Path, out: Path, *more: str) -> Path:
    command = [sys.executable, "-c", SCRIPT, str(SOURCE.resolve()), str(folder), str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.is_file(), f"llama.cpp's converter fails: {done.stderr[-2000:]}"
    return out


def published(folder: Path) -> Path:
    """The folder with settings as published ones have them."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change = PUBLISHED.get(config["architectures"][0], lambda config: {})
    config |= change(config)
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    for before, after in RENAMED.get(config["architectures"][0], {}).items():
        weights = folder / "model.safetensors"
        tensors = {re.sub(before, after, name): values for name, values in load_file(weights).items()}
        save_file(tensors, weights)
    return folder


def meaning(file: Any) -> dict[str, Any]:
    architecture = file.architecture + "."
    found = {key.removeprefix(architecture): value for key, value in file.metadata.items()}
    return {
        key: _plain(value)
        for key, value in found.items()
        if (key, value) != ("nextn_predict_layers", 0)
        and key not in THEIRS
        and key not in OURS
        and key not in APART.get(file.architecture, ())
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(each) for each in value] if isinstance(value, list) else value


def check_same(first: Path, second: Path) -> None:
    """That two files have the same keys, but for those that are listed above, and the same tensors."""
    with open_gguf(first) as ours, open_gguf(second) as other:
        assert shapes(ours) == shapes(other)
        for tensor in ours.tensors:
            assert ours.tensor(tensor).type is other.tensor(tensor).type, tensor
            found, expected = ours.array(tensor), other.array(tensor)
            np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-6, err_msg=tensor)
        assert meaning(ours) == meaning(other)
        assert ours.architecture == other.architecture


def shapes(file: Any) -> dict[str, tuple[int, ...]]:
    return {
        name: tensor.shape[-1:] if name.endswith(ROWS) else tensor.shape
        for name, tensor in file.tensors.items()
    }


@pytest.mark.parametrize("name", [name for name in ALL if "first files" not in name])
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    model = original(ALL[name])
    if type(model).__name__ not in convertible():
        pytest.skip("is not converted")
    folder = published(saved(tmp_path / "checkpoint", model))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))
