"""Converted models beside what llama.cpp's converter makes of the same folder: key by key, tensor by tensor.

The converter comes with the source that `make test-peers` builds llama.cpp from; LLAMA_CPP names another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from puna.convert import convert, convert_adapters, convert_tower
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import (
    save_modules,
    save_nemotron_head,
    save_tokenizer,
    saved,
    saved_with_words,
)
from tests.convert.jina import save_jina2, save_jina3
from tests.convert.test_encoders import checkpoint
from tests.convert.test_modules import embedding_gemma
from tests.convert.test_rwkv import ARWKV, save_arwkv
from tests.model.models.parity import original
from tests.model.models.test_decoders import MODELS
from tests.tiny.decoders import TinyDecoder
from tests.tiny.encoders import TinyJinaBertV3, TinyModernBert
from tests.tiny.heads import MODELS as HEADS
from tests.tiny.heads import TinyHeads, save_heads
from tests.tiny.jina import TinyJinaBertV2
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import LLAMA3_ROPE, TinyLlama, vocabulary
from tests.tiny.llama4 import TinyLlama4
from tests.tiny.mamba import NEMOTRON_H_LATENT
from tests.tiny.rerankers import (
    QWEN3,
    QWEN3_TIED,
    save_jina_reranker2,
    save_qwen3_reranker,
    tiny_bert_reranker,
    tiny_bge,
    tiny_gte,
)
from tests.tiny.t5 import TinyT5
from tests.tiny.vision.minicpmv import TinyMiniCPMV
from tests.tiny.vision.models import VISION_MODELS

SOURCE = Path(os.environ.get("LLAMA_CPP", ".venv-peers/llama.cpp"))
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        not (SOURCE / "convert_hf_to_gguf.py").is_file(),
        reason="there is no source of llama.cpp: run make test-peers",
    ),
]

ALL: dict[str, Any] = {
    "llama": TinyLlama(),
    "llama 3": TinyLlama(tied=True, rope_scaling=LLAMA3_ROPE),
    "mixtral": TinyLlama(experts=4),
    "lfm2": TinyLfm2(),
    "lfm2moe": TinyLfm2(experts=4),
    "llama4": TinyLlama4(),
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
        "nextn_predict_layers", "expert_weights_scale",
    },
    # Readers of ours and theirs assume other values where a key is missing, so that ours is always written.
    "mistral3": {"attention.temperature_scale"},
    "llama4": {"attention.chunk_size", "attention.floor_scale", "attention.scale", "use_qk_norm"},
    "gemma3": {"attention.sliding_window_pattern"},  # of the tiny model that sees, where it is unusual
    "gemma-embedding": {"attention.sliding_window_pattern"},
    **{
        name: {"tokenizer.ggml.cls_token_id"}
        for name in ("bert", "jina-bert-v2", "nomic-bert", "nomic-bert-moe")
    },
    "jina-bert-v3": {"tokenizer.ggml.token_type_count"},  # which theirs writes with the vocabulary it has
    # Theirs ends its texts, whatever the tokenizer does.
    "modern-bert": {"tokenizer.ggml.cls_token_id", "tokenizer.ggml.add_eos_token"},
    "qwen35": {"rope.dimension_sections"}, "qwen35moe": {"rope.dimension_sections"},
    "mistral4": {"attention.temperature_scale"}, "gemma3n": {"altup.correct_scale"},
    "ernie4_5-moe": {"expert_shared_feed_forward_length"},
    "nemotron_h": {"attention.layer_norm_rms_epsilon"},
    "nemotron_h_moe": {"attention.layer_norm_rms_epsilon"},
}  # fmt: skip
#: What tensors of published models are called, unlike those that transformers saves.
_WITHIN = {r"vision_tower\.(?!vision_model)": "vision_tower.vision_model."}
RENAMED = {
    "Gemma3ForConditionalGeneration": _WITHIN,
    "InternVLForConditionalGeneration": {r"^(?=vision_tower|multi_modal)": "model."},
    "KimiLinearForCausalLM": {r"block_sparse_moe\.(gate|up|down)_proj": r"mlp.\1_proj"},
    "Lfm2VlForConditionalGeneration": _WITHIN,
}
#: Tensors that published models have turned.
TURNED = {"Qwen3VLMoeForConditionalGeneration": ("experts.gate_up_proj", "experts.down_proj")}
#: What their reader wants of Pixtral, and their converter leaves out.
OURS_ALONE = "v.token_embd.img_break"
#: What their converter leaves flat, though their reader multiplies channels by it.
FLAT = "layer_scale.gamma"
#: What listens, which ours leaves out.
SOUND = ("a.", "mm.a.", "audio.", "has_audio_encoder")
#: What theirs always has as F16.
HALVES = "mm.input_projection.weight"


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


def _glm_ocr(config: dict[str, Any]) -> dict[str, Any]:
    text = config["text_config"]
    return {
        "text_config": {**text, "rope_parameters": {**text["rope_parameters"], "partial_rotary_factor": 1.0}}
    }


def _parts(config: dict[str, Any], **names: str) -> dict[str, Any]:
    """With the architectures of parts, which published settings have."""
    return {
        f"{part}_config": {**config[f"{part}_config"], "architectures": [name]}
        for part, name in names.items()
    }


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


def _modern_bert(config: dict[str, Any]) -> dict[str, Any]:
    return {
        **UNKNOWN, "global_attn_every_n_layers": 3, "layer_types": None, "rope_parameters": None,
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "layer_norm_eps": config["norm_eps"],
        "cls_token_id": 0, "sep_token_id": 1,
    }  # fmt: skip


#: What config.json says of published models that transformers does not save; None: what those lack.
PUBLISHED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Cohere2ForCausalLM": lambda config: {"rotary_pct": 1.0},
    "Gemma3ForConditionalGeneration": lambda config: UNKNOWN,
    "GlmOcrForConditionalGeneration": _glm_ocr,
    "Glm4MoeForCausalLM": lambda config: {"num_nextn_predict_layers": 0},
    "GraniteMoeHybridForCausalLM": lambda config: {
        "layer_types": [{"full_attention": "attention"}.get(kind, "mamba") for kind in config["layer_types"]]
    },
    "Idefics3ForConditionalGeneration": lambda config: _parts(config, text="LlamaForCausalLM"),
    "InternVLForConditionalGeneration": lambda config: {
        **_parts(config, text="LlamaForCausalLM", vision="InternVisionModel"),
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 4,
    },
    "KimiLinearForCausalLM": _kimi,
    "Lfm2VlForConditionalGeneration": lambda config: _parts(config, text="Lfm2ForCausalLM"),
    "Qwen2ForCausalLM": lambda config: UNKNOWN,
    "MiMoV2FlashForCausalLM": _mimo,
    "ModernBertForSequenceClassification": _modern_bert,
    "ModernBertModel": _modern_bert,
    "NomicBertModel": lambda config: UNKNOWN,
    "Mistral4ForCausalLM": lambda config: {"architectures": ["Mistral3ForConditionalGeneration"]},
    "NemotronHForCausalLM": _nemotron,
}
#: What theirs alone say: guesses from names of folders, and what has no meaning for the architecture.
THEIRS = (
    "general.size_label", "general.basename", "general.finetune", "general.version", "general.organization",
    "general.tags", "general.languages", "general.license", "general.name", "general.sampling",
)  # fmt: skip

#: Their converter, which converts what lines say: [folder, file, options, whether with its own vocabularies].
#: It knows a pre-tokenizer by what it makes of a text, for a table of vocabularies.
SCRIPT = """
import json, sys, traceback
source = sys.argv[1]
sys.path[:0] = [source, source + "/gguf-py"]
import conversion
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
import transformers
transformers.AutoTokenizer = transformers.PreTrainedTokenizerFast  # others add tokens to what is published
import convert_hf_to_gguf as main
found = conversion.get_model_class

for line in sys.stdin:
    folder, out, options, own = json.loads(line)

    def kind_of(name, mmproj=False):
        kind = found(name, mmproj)
        kind.no_mtp = False
        return kind if own or mmproj else type(kind.__name__, (kind,), {
            "model_arch": kind.model_arch, "set_vocab": base.TextModel._set_vocab_gpt2,
            "lerp_weights": {},  # which one class has for all models
        })

    main.get_model_class = kind_of
    sys.argv = ["convert", folder, "--outfile", out, "--outtype", "f32", *options]
    try:
        main.main()
        said = ""
    except BaseException:
        said = traceback.format_exc()
    print(json.dumps(said), flush=True)
"""


@cache
def converter() -> subprocess.Popen[str]:
    """Their converter, running; it ends with these tests."""
    command = [sys.executable, "-c", SCRIPT, str(SOURCE.resolve())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def theirs(folder: Path, out: Path, *options: str, own_vocabulary: bool = False) -> Path:
    """What their converter makes of a folder, its vocabulary being taken for one of bytes."""
    running = converter()
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(json.dumps([str(folder), str(out), options, own_vocabulary]) + "\n")
    running.stdin.flush()
    said = json.loads(running.stdout.readline())
    assert out.is_file(), f"llama.cpp's converter fails: {said[-2000:]}"
    return out


def published(folder: Path) -> Path:
    """The folder with settings as published ones have them."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    changes = PUBLISHED.get(config["architectures"][0], lambda config: {})(config)
    lacking = [name for name, value in changes.items() if value is None]
    config |= changes
    path.write_text(json.dumps({name: value for name, value in config.items() if name not in lacking}))
    weights = folder / "model.safetensors"
    if turned := TURNED.get(config["architectures"][0]):
        tensors = load_file(weights)
        for name in tensors:
            if name.endswith(turned):
                tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(-1, -2))
        save_file(tensors, weights)
    for before, after in RENAMED.get(config["architectures"][0], {}).items():
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
        and not key.startswith(SOUND)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}, a fraction"
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(each) for each in value] if isinstance(value, list) else value


def check_same(
    first: Path,
    second: Path,
    *,
    unread: Collection[str] = (),
    alone: Collection[str] = (),
    apart: Collection[str] = (),
    called: tuple[str, str] = ("", ""),
) -> None:
    """That two files have the same keys, but for those listed above and `apart`, and the same tensors.

    Of those that are `unread`, only shapes; those `alone` are of the first file. `called` is what of a
    tensor's name is otherwise: in the first file, in the second.
    """
    with open_gguf(first) as ours, open_gguf(second) as other:
        both = {name: shape for name, shape in shapes(ours).items() if name not in alone}
        assert {name.replace(*called): shape for name, shape in both.items()} == shapes(other)
        for tensor in both.keys() - set(unread):
            exact = tensor != HALVES
            assert not exact or ours.tensor(tensor).type is other.tensor(tensor.replace(*called)).type, tensor
            found, expected = ours.array(tensor), other.array(tensor.replace(*called))
            tolerance = {"rtol": 1e-6} if exact else {"rtol": 1e-3, "atol": 1e-6}
            np.testing.assert_allclose(found, expected.reshape(found.shape), **tolerance, err_msg=tensor)
        said, expected = (
            {key: value for key, value in meaning(file).items() if key not in apart} for file in (ours, other)
        )
        assert said == expected
        assert ours.architecture == other.architecture


def shapes(file: Any) -> dict[str, tuple[int, ...]]:
    """Without dimensions of 1 before the others, which mean nothing to readers."""
    return {
        name: (tensor.count,)
        if name.endswith(FLAT)
        else tuple(dropwhile(lambda size: size == 1, tensor.shape))
        for name, tensor in file.tensors.items()
        if name != OURS_ALONE and not name.startswith(SOUND)
    }


#: What their converter does not convert, or not as it is.
FAILING = {
    "gemma2 without caps": "wants numbers where there are no caps",
    "gemma3n, second of three streams": "knows four streams only",
    "mamba2": "takes the size within for twice the hidden one",
    "rwkv7": "makes something up for what the first layer has not",
    "arwkv7": "knows its own publication alone, see below",
}


@pytest.mark.parametrize("name", [name for name in ALL if "first files" not in name and name not in FAILING])
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    folder = published(saved(tmp_path / "checkpoint", original(ALL[name])))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    without_heads = ["--no-mtp"] if name.startswith(("qwen35", "qwen3next")) else []
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", *without_heads))


#: Two of which theirs leaves out; it counts three heads of MiMo's whatever there are.
UNCOUNTED = ("deepseek2", "glm4moelite", "mimo2")


@pytest.mark.parametrize("name", [name for name in HEADS if name not in UNCOUNTED])
def test_prediction_heads_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    tiny = HEADS[name]
    folder = save_heads(tmp_path / "checkpoint", tiny, original(tiny))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "nomic-bert-moe"])
def test_encoders_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", name)
    save_modules(folder)
    convert(published(folder), tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=True))


@pytest.mark.parametrize("gated", ARWKV, ids=["plain", "gated"])
def test_arwkv_is_that_of_llama_cpp(gated: bool, tmp_path: Path) -> None:
    """But for what files have in the first layer and nobody reads."""
    folder = save_arwkv(tmp_path / "checkpoint", ARWKV[gated], original(ARWKV[gated]))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    unread = [f"blk.0.time_mix_v{number}.weight" for number in range(3)]
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"), unread=unread)


def test_modern_bert_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """Its vocabulary is one of bytes."""
    folder = saved(tmp_path / "checkpoint", original(TinyModernBert(vocabulary=len(vocabulary()))))
    convert(published(folder), tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=True))


#: Rerankers with a vocabulary of bytes, and how they are saved.
RANKING: dict[str, tuple[Callable[[], Any], Callable[..., Path]]] = {
    "xlm-roberta": (lambda: tiny_bge(len(vocabulary())), saved_with_words),
    "jina 2": (lambda: tiny_bge(len(vocabulary())), save_jina_reranker2),
    "modern-bert": (lambda: tiny_gte("cls", len(vocabulary())), saved_with_words),
}


@pytest.mark.parametrize("name", RANKING)
def test_rerankers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    build, save = RANKING[name]
    folder = save(tmp_path / "checkpoint", build())
    save_tokenizer(folder)
    convert(published(folder), tmp_path / "ours.gguf", FileType.F32)
    own = name == "modern-bert"  # of the others theirs reads no bytes
    out = theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=own)
    check_same(tmp_path / "ours.gguf", out, apart=() if own else ("tokenizer.ggml.token_type_count",))


@pytest.mark.parametrize("tiny", [QWEN3, QWEN3_TIED], ids=["apart", "tied"])
def test_qwens_reranker_is_that_of_llama_cpp(tiny: TinyDecoder, tmp_path: Path) -> None:
    """But for a list of its templates, which no reader asks for."""
    folder = save_qwen3_reranker(tmp_path / "checkpoint", original(tiny))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    out = theirs(folder, tmp_path / "theirs.gguf")
    check_same(tmp_path / "ours.gguf", out, apart=("tokenizer.chat_templates",))


def test_berts_reranker_is_that_of_llama_cpp_but_for_the_pooler(tmp_path: Path) -> None:
    folder = saved_with_words(tmp_path / "checkpoint", tiny_bert_reranker())
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    out = theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=True)
    check_same(tmp_path / "ours.gguf", out, alone=("cls.weight", "cls.bias"))


def test_jina_2_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """Not the models for code, whose gates and ups theirs writes as one."""
    for kind in ("gated", "plain"):
        tiny = TinyJinaBertV2(kind=kind)
        folder = save_jina2(tmp_path / kind, original(tiny))
        convert(folder, tmp_path / "ours.gguf", FileType.F32)
        out = tmp_path / f"{kind}.gguf"
        check_same(tmp_path / "ours.gguf", theirs(folder, out, own_vocabulary=True))


def test_jina_3_and_its_adapters_are_those_of_llama_cpp(tmp_path: Path) -> None:
    folder = save_jina3(tmp_path / "checkpoint", original(TinyJinaBertV3(vocabulary=len(vocabulary()))))
    save_tokenizer(folder)
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    adapters = convert_adapters(folder, lambda name: tmp_path / f"{name}.gguf")
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))
    for name, path in adapters.items():
        check_same(path, tmp_path / f"lora-{name}-theirs.gguf")


def test_the_head_of_nemotron_is_that_of_llama_cpp(tmp_path: Path) -> None:
    folder = save_nemotron_head(tmp_path / "checkpoint", original(NEMOTRON_H_LATENT))
    convert(published(folder), tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


def test_the_head_of_glm_ocr_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """Of its text alone."""
    tiny = TinyHeads(MODELS["glm4"])
    folder = save_heads(tmp_path / "checkpoint", tiny, original(tiny))
    path = folder / "config.json"
    config = json.loads(path.read_text()) | UNKNOWN | {"architectures": ["GlmOcrForConditionalGeneration"]}
    path.write_text(json.dumps(config))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


def test_embedding_gemma_is_that_of_llama_cpp(tmp_path: Path) -> None:
    folder = embedding_gemma(tmp_path / "checkpoint")
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    linears = "--sentence-transformers-dense-modules"
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", linears))


@pytest.mark.parametrize("tied", [False, True])
def test_t5_is_that_of_llama_cpp(tied: bool, tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", TinyT5(tied=tied, layers=3, decoder_layers=3).build())
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


#: Of models that see, whether it also converts the text: a tiny model of experts that are square does not say
#: whether they are turned.
SEEN = {
    "gemma3": True, "gemma3n": True, "gemma4": True, "gemma4, small": True, "glm4v": True,
    "glm4v, experts": True, "glmocr": True, "idefics3": True, "internvl": True, "lfm2": True, "llama4": False,
    "mistral3": True,
    "minicpmv 4.6": False, "qwen25vl": True, "qwen2vl": True, "qwen35": False, "qwen3vl": True,
    "qwen3vlmoe": False,
}  # fmt: skip

#: What ours and theirs call otherwise: to the second norms of Llama 4 theirs gives the name of Gemma 4's.
CALLED = {"llama4": (".ln2.", ".attn_post_norm.")}
#: Keys that theirs leaves out where ours writes what the tiny model has, which is not what readers assume.
ALSO_SAID = {
    "gemma4": {"vision.image_max_pixels", "vision.projector.scale_factor"},
    "gemma4, small": {"vision.image_max_pixels", "vision.projector.scale_factor"},
    "qwen25vl": {"vision.window_size"},
}


@pytest.mark.parametrize("name", SEEN)
def test_what_sees_is_that_of_llama_cpp(name: str, tmp_path: Path) -> None:
    tiny = VISION_MODELS[name]()
    if name == "lfm2":
        tiny.patch_size = 16  # it knows no other
    tiny.layers = max(tiny.layers, 4)  # theirs knows no names with numbers beyond those of layers
    folder = saved(tmp_path / "checkpoint", original(tiny), tokenizer=False)
    part = ["<|part|>"] if hasattr(tiny, "part_id") else []
    save_tokenizer(folder, markers=[*tiny.markers, *part])
    (folder / "preprocessor_config.json").write_text(json.dumps(tiny.pictures))
    published(folder)
    assert convert_tower(folder, tmp_path / "ours.gguf", FileType.F32)
    called = CALLED.get(name, ("", ""))
    other = theirs(folder, tmp_path / "theirs.gguf", "--mmproj")
    check_same(tmp_path / "ours.gguf", other, called=called, apart=ALSO_SAID.get(name, ()))
    if SEEN[name]:
        convert(folder, tmp_path / "text.gguf", FileType.F32)
        check_same(tmp_path / "text.gguf", theirs(folder, tmp_path / "their text.gguf"))


#: The converter of MiniCPM-V before 4.6, which wants what is to be converted taken apart.
APART_SCRIPT = "tools/mtmd/legacy-models/minicpmv-convert-image-encoder-to-gguf.py"
#: What it says that no reader asks for.
UNREAD = {"clip.has_text_encoder", "clip.has_minicpmv_projector", "general.description"}


@pytest.mark.parametrize(
    ("version", "audio", "number"),
    [("2.5", False, 2), ("2.6", False, 3), ("2.6", True, 4), ("4.0", False, 5), ("4.5", False, 6),
     ("4.5", True, 100045)],
)  # fmt: skip
def test_the_resampler_of_minicpmv_is_that_of_llama_cpp(
    version: str, audio: bool, number: int, tmp_path: Path
) -> None:
    tiny = TinyMiniCPMV(TinyLlama(hidden=256), version=version, audio=audio)
    model = original(tiny)
    folder = saved(tmp_path / "checkpoint", model)
    (folder / "preprocessor_config.json").write_text(json.dumps(tiny.pictures))
    assert convert_tower(folder, tmp_path / "ours.gguf", FileType.F32)
    state = model.state_dict()
    for part, prefix, name in (("vpm.", "vpm.", "clip"), ("resampler.", "", "projector")):
        found = {key.removeprefix(prefix): state[key] for key in state if key.startswith(part)}
        torch.save(found, folder / f"minicpmv.{name}")
    wanted = [str(SOURCE / APART_SCRIPT), "-m", str(folder), "--use-f32", "--minicpmv_version", str(number)]
    subprocess.run([sys.executable, *wanted], check=True, capture_output=True)
    with open_gguf(tmp_path / "ours.gguf") as ours, open_gguf(folder / "mmproj-model-f32.gguf") as other:
        assert shapes(ours) == shapes(other)
        for tensor in shapes(ours):
            expected = other.array(tensor).reshape(ours.array(tensor).shape)
            tolerance = {"rtol": 1e-3, "atol": 1e-4} if "patch" in tensor else {"rtol": 1e-5, "atol": 1e-5}
            np.testing.assert_allclose(ours.array(tensor), expected, **tolerance, err_msg=tensor)
        said = {key: _plain(value) for key, value in other.metadata.items() if key not in UNREAD}
        assert said.items() <= {key: _plain(value) for key, value in ours.metadata.items()}.items()


#: What theirs says otherwise of DeepSeek-OCR: a width of its own making, another model's small number; and
#: that nothing is rotated.
OCR = {"vision.feed_forward_length", "vision.attention.layer_norm_epsilon"}
OCR_TEXT = {"rope.dimension_count"}


def test_deepseek_ocr_is_that_of_llama_cpp(tmp_path: Path) -> None:
    tiny = VISION_MODELS["deepseek-ocr"]()
    tiny.layers = 4  # theirs knows no names with numbers beyond those of layers
    folder = saved(tmp_path / "checkpoint", tiny.published(original(tiny)))
    pictures = {**tiny.pictures, "image_seq_length": 4}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    for kind, apart, options in ((convert_tower, OCR, ["--mmproj"]), (convert, OCR_TEXT, [])):
        mine, other = tmp_path / f"{kind.__name__}.gguf", tmp_path / f"their {kind.__name__}.gguf"
        kind(folder, mine, FileType.F32)
        check_same(mine, theirs(folder, other, *options), apart=apart)
