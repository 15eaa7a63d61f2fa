"""A small model of every architecture, made without any framework from the tensors its modules declare."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from puna.audio.whisper import WhisperEncoder, WhisperEncoderOptions
from puna.gguf import GGMLType, GGUFFile, dequantize, open_gguf, quantize
from puna.gguf.reader import full_key
from puna.model.registry import model_for
from puna.ops import Backend, ExpertWeights, Weight, backend_named
from tests.gguf import gguf_bytes as raw
from tests.tiny.llama import SPECIALS, merges, vocabulary
from tests.tiny.whisper import TinyWhisper

HIDDEN, CONTEXT = 64, 96
_WINDOW_STATES = 50  # of a recording

_COMMON: dict[str, Any] = {
    "block_count": 2, "context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
    "attention.value_length": 16, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
    "rope.dimension_count": 16,
}  # fmt: skip
_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
_WINDOW = {"attention.sliding_window": 32}
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
    "rope.scaling.attn_factor": 1.0,
}  # fmt: skip
_CONVOLUTION = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2]}
_LATENTS = {
    **_EXPERTS, "attention.key_length_mla": 20, "attention.value_length_mla": 12,
    "attention.kv_lora_rank": 32, "attention.q_lora_rank": 32, "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
}  # fmt: skip
_INDEXED = {
    **_LATENTS, "attention.indexer.head_count": 2, "attention.indexer.key_length": 16,
    "attention.indexer.top_k": 4,
}  # fmt: skip
_MAMBA = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
}  # fmt: skip
_DISTANCES = {"attention.relative_buckets_count": 8, "attention.head_count_kv": 4}
_HALVES = {**_MAMBA, "attention.head_count_kv": [0, 0], "feed_forward_length": [0, 64]}
_TIME_MIX = {
    "wkv.head_size": 16, "attention.decay_lora_rank": 8, "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8, "attention.head_count": 0, "attention.head_count_kv": 0,
}  # fmt: skip
_TIME_SHIFT = {"wkv.head_size": 16, "time_mix_extra_dim": 8, "time_decay_extra_dim": 8}
_LINEAR = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4,
    "ssm.inner_size": 64, "full_attention_interval": 2, "rope.dimension_sections": [2, 3, 3],
}  # fmt: skip
_GRANITE = {"residual_scale": 0.2, "embedding_scale": 12.0, "logit_scale": 8.0, "attention.scale": 0.1}
_OCR = {**_EXPERTS, "leading_dense_block_count": 1, "attention.head_count_kv": 4}
_PLACES = {"rope.dimension_sections": [2, 3, 3]}
_ALTERNATING = {**_WINDOW, "attention.sliding_window_pattern": [True, False]}
#: Metadata of each architecture beyond the common; the two layers of `mllama` are of different kinds.
OWN: dict[str, dict[str, Any]] = {
    "apertus": {
        "xielu.alpha_p": [0.4, 0.8],
        "xielu.alpha_n": [0.5, -0.2],
        "xielu.beta": [0.5, 0.3],
        "xielu.eps": [-1e-6, -1e-6],
    },
    "arcee": {},
    "arctic": _EXPERTS,
    "arwkv7": _TIME_MIX,
    "baichuan": {"block_count": 32, "feed_forward_length": 32},
    "bailingmoe2": {
        **_EXPERTS,
        "leading_dense_block_count": 1,
        "expert_group_count": 2,
        "expert_group_used_count": 1,
        "rope.dimension_count": 8,
    },
    "bailingmoe3": {
        **_LATENTS,
        "attention.q_lora_rank": 0,
        "kda.head_dim": 16,
        "kda.gate_lower_bound": -5.0,
        "ssm.conv_kernel": 4,
        "attention.head_count_kv": [0, 2],
        "expert_gating_func": 2,
        "swiglu_clamp_exp": [0.0, 0.5],
        "swiglu_clamp_shexp": [0.5, 0.0],
    },
    "bert": {},
    "bitnet": {},
    "bitnet-b1.58": {},
    "bloom": {},
    "chatglm": {"rope.dimension_count": 8},
    "codeshell": {},
    "cohere2": {**_WINDOW, "logit_scale": 0.25},
    "cohere2moe": {
        **_ALTERNATING,
        **_EXPERTS,
        "logit_scale": 0.25,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
    },
    "command-r": {},
    "dbrx": {**_EXPERTS, "attention.clamp_kqv": 2.0},
    "deepseek": _OCR,
    "deepseek2": {**_LATENTS, "expert_group_count": 2, "expert_group_used_count": 1},
    "deepseek2-ocr": _OCR,
    "deepseek32": _INDEXED,
    "deepseek4": {
        **_EXPERTS,
        **_WINDOW,
        **_YARN,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 32,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": 8,
        "attention.compress_ratios": [6, 4],
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 16,
        "attention.indexer.top_k": 4,
        "hyper_connection.count": 3,
        "hyper_connection.sinkhorn_iterations": 2,
        "hash_layer_count": 1,
        "swiglu_clamp_exp": [0.5, 0.5],
        "expert_gating_func": 4,
    },
    "deepseekocr": _OCR,
    "dots1": {**_EXPERTS, "leading_dense_block_count": 1, "expert_gating_func": 2},
    "ernie4_5": {},
    "ernie4_5-moe": {**_EXPERTS, "leading_dense_block_count": 1, "expert_shared_feed_forward_length": 32},
    "exaone": {},
    "exaone-moe": {**_WINDOW, **_EXPERTS, "leading_dense_block_count": 1, "expert_gating_func": 2},
    "exaone4": _WINDOW,
    "falcon": {},
    "falcon-h1": _MAMBA,
    "gemma": {},
    "gemma-embedding": _ALTERNATING,
    "gemma2": _WINDOW,
    "gemma3": _ALTERNATING,
    "gemma3n": {**_ALTERNATING, "embedding_length_per_layer_input": 16, "altup.num_inputs": 2},
    "gemma4": {**_ALTERNATING, "attention.key_length_swa": 16, "attention.value_length_swa": 16},
    "glm-dsa": {**_INDEXED, "attention.indexer.types": [True, False]},
    "glm4": {},
    "glm4moe": {
        **_EXPERTS,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
    },
    "glm4moelite": {**_LATENTS, "attention.key_length": 20, "attention.value_length": 12},
    "glm5-next": {
        **_INDEXED,
        "kda.head_dim": 16,
        "kda.gate_lower_bound": -5.0,
        "ssm.conv_kernel": 4,
        "attention.head_count_kv": [0, 1],
        "expert_gating_func": 2,
        "rope.dimension_count": 0,
        "attention.indexer.kpool": 2,
        "hyper_connection.count": 3,
        "hyper_connection.sinkhorn_iterations": 4,
        "swiglu_clamp_exp": [0.5, 0.5],
        "swiglu_clamp_shexp": [0.5, 0.5],
    },
    "glmocr": _PLACES,
    "gpt-oss": {**_EXPERTS, **_WINDOW},
    "gpt2": {},
    "gptneox": {},
    "gptoss": {**_EXPERTS, **_WINDOW},
    "granite": _GRANITE,
    "granite_swa": {
        **_GRANITE,
        **_ALTERNATING,
        **_EXPERTS,
        "expert_shared_feed_forward_length": 32,
        "attention.rope_pattern": [True, False],
    },
    "granitehybrid": {**_MAMBA, "attention.head_count_kv": [0, 2]},
    "granitemoe": {**_GRANITE, **_EXPERTS},
    "grok": {**_EXPERTS, "embedding_scale": 6.0, "final_logit_softcapping": 20.0},
    "hunyuan-dense": {},
    "hunyuan-moe": {**_EXPERTS, "expert_shared_feed_forward_length": 96},
    "hy_v4": {
        **_INDEXED,
        "attention.indexer.types": [True, False],
        "hyper_connection.count": 3,
        "swiglu_clamp_exp": [0.5, 0.5],
    },
    "hy_v3": {**_EXPERTS, "leading_dense_block_count": 1, "expert_shared_feed_forward_length": 32},
    "internlm2": {},
    "jais": {},
    "jais2": {},
    "jamba": {**_MAMBA, **_EXPERTS, "attention.head_count_kv": [0, 2]},
    "jina-bert-v2": {},
    "jina-bert-v3": {},
    "kimi-linear": {
        **_LATENTS,
        "kda.head_dim": 16,
        "ssm.conv_kernel": 4,
        "attention.head_count_kv": [0, 2],
        "expert_gating_func": 2,
    },
    "laguna": {**_ALTERNATING, **_EXPERTS, "attention.head_count": [4, 8], "leading_dense_block_count": 1},
    "lfm2": _CONVOLUTION,
    "lfm2moe": {**_CONVOLUTION, **_EXPERTS, "leading_dense_block_count": 1, "expert_gating_func": 2},
    "llama": {},
    "llama4": {**_EXPERTS, "interleave_moe_layer_step": 2, "attention.chunk_size": 32},
    "mamba": {**_MAMBA, "attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0},
    "mamba2": {
        **_MAMBA,
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
    },
    "mellum": {**_ALTERNATING, **_EXPERTS, **_YARN},
    "mimo2": {**_ALTERNATING, **_EXPERTS, "expert_gating_func": 2, "leading_dense_block_count": 1},
    "minicpm": {"residual_scale": 0.2, "embedding_scale": 12.0, "logit_scale": 8.0},
    "minicpm3": {
        "attention.key_length": 20,
        "attention.value_length": 12,
        "attention.kv_lora_rank": 32,
        "attention.q_lora_rank": 32,
        "rope.dimension_count": 8,
    },
    "minimax-m2": {**_EXPERTS, "expert_gating_func": 2},
    "minimax-m3": {
        **_EXPERTS,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 8,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 16,
        "attention.indexer.top_k": 2,
        "attention.indexer.block_size": 4,
        "attention.indexer.local_blocks": 1,
    },
    "mistral3": {},
    "mistral4": {**_LATENTS, **_YARN, "attention.temperature_scale": 0.1},
    "mllama": {"attention.cross_attention_layers": [1], "vision.max_num_tiles": 1, "vision.image_size": 56},
    "modern-bert": {**_WINDOW, "attention.sliding_window_pattern": 2},
    "muse-glimmer": {**_ALTERNATING, "logit_scale": 0.5, "final_logit_softcapping": 20.0},
    "mpt": {"attention.clamp_kqv": 2.0},
    "nemotron": {},
    "nemotron_h": _HALVES,
    "nemotron_h_moe": {**_HALVES, **_EXPERTS, "expert_shared_feed_forward_length": 64},
    "nomic-bert": {},
    "nomic-bert-moe": {**_EXPERTS, "moe_every_n_layers": 2},
    "olmo2": _YARN,
    "olmo3": {**_WINDOW, **_YARN},
    "olmoe": _EXPERTS,
    "openelm": {"attention.head_count": [4, 2], "attention.head_count_kv": [2, 1]},
    "orion": {},
    "paddleocr": _PLACES,
    "phi2": {},
    "phi3": {"rope.scaling.attn_factor": 1.2},
    "plamo3": _ALTERNATING,
    "qwen2": {},
    "qwen25vl": _PLACES,
    "qwen2moe": {**_EXPERTS, "expert_shared_feed_forward_length": 64},
    "qwen2vl": _PLACES,
    "qwen3": _YARN,
    "qwen35": _LINEAR,
    "qwen35moe": {**_LINEAR, **_EXPERTS, "expert_shared_feed_forward_length": 64},
    "qwen3moe": {**_EXPERTS, "expert_group_count": 2, "expert_group_used_count": 1},
    "qwen3next": {**_LINEAR, **_EXPERTS, "expert_shared_feed_forward_length": 64},
    "qwen4exp": {
        **_LINEAR,
        **_EXPERTS,
        "expert_shared_feed_forward_length": 64,
        "hyper_connection.count": 2,
        "hyper_connection.low_rank": 8,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 16,
        "attention.indexer.top_k": 8,
        "attention.compress_ratios": [0, 4],
        "ple.layers": [0],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 2,
        "ple.conv_kernel": 3,
        "ple.eos_token_id": 5,
        "ple.layer_multipliers": [7919, 104729, 1299709],
        "ple.head_offsets": [0, 11, 24, 41],
        "ple.head_vocab_sizes": [11, 13, 17, 19],
        "embedding_length_per_layer_input": 16,
    },
    "qwen3vl": _PLACES,
    "qwen3vlmoe": {**_PLACES, **_EXPERTS},
    "refact": {"attention.head_count_kv": 1},
    "rwkv6": {**_TIME_SHIFT, "attention.head_count": 0, "attention.head_count_kv": 0},
    "rwkv6qwen2": {**_TIME_SHIFT, "token_shift_count": 1},
    "rwkv7": {**_TIME_MIX, "attention.gate_lora_rank": 8},
    "seed_oss": {},
    "smallthinker": {**_WINDOW, **_EXPERTS},
    "smollm3": {},
    "stablelm": {},
    "starcoder": {"attention.head_count_kv": 1},
    "starcoder2": {},
    "step35": {
        **_ALTERNATING,
        **_EXPERTS,
        "attention.head_count": [4, 2],
        "expert_shared_feed_forward_length": 48,
        "swiglu_clamp_exp": [0.0, 0.5],
        "swiglu_clamp_shexp": [0.5, 0.0],
    },
    "t5": {**_DISTANCES, "decoder_block_count": 1},
    "t5encoder": _DISTANCES,
    "xverse": {},
}
#: The same of models that transcribe.
TRANSCRIBING: dict[str, dict[str, Any]] = {
    "whisper": {
        "attention.head_count_kv": 4,
        "attention.layer_norm_epsilon": 1e-5,
        "alignment_heads": [1, 0, 0, 3],
        "multilingual": True,
        "audio.block_count": 1,
        "audio.embedding_length": HIDDEN,
        "audio.feed_forward_length": 96,
        "audio.attention.head_count": 4,
        "audio.num_mel_bins": 40,
    },
}

#: The embedding architectures.
ENCODERS = (
    "bert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "t5encoder",
)


@dataclass
class Tensor:
    """A tensor of a file; `shape` is row-major."""

    shape: tuple[int, ...]
    type: GGMLType
    data: bytes


@dataclass
class Model:
    """A GGUF file in pieces that can be changed one by one."""

    keys: dict[str, Any] = field(default_factory=dict)  # values, or `Raw`
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def encode(self) -> bytes:
        keys = [raw.key(name, *encoded(value)) for name, value in self.keys.items()]
        directory, data = [], bytearray()
        for name, tensor in self.tensors.items():
            directory.append(raw.tensor(name, tensor.shape[::-1], tensor.type, len(data)))
            data += tensor.data + bytes(-len(tensor.data) % 32)
        return raw.gguf(keys, directory, bytes(data))

    def copy(self) -> Model:
        return Model(dict(self.keys), dict(self.tensors))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file, whose lists of metadata are short."""
        with open_gguf(path) as file:
            return cls(
                {key: _value(file, key) for key in file.metadata},
                {
                    name: Tensor(info.shape, info.type, file.data(name).tobytes())
                    for name, info in file.tensors.items()
                },
            )


def _value(file: GGUFFile, key: str) -> Any:
    """Return a value that `encoded` can write, as it is in the file if there is none."""
    value: Any = file.metadata[key]
    if not isinstance(value, bool | int | float | str):
        value = np.asarray(value).tolist()
    kind, data = struct.unpack_from("<I", found := file.encoded(key))[0], found[4:]
    try:
        if encoded(value) == (kind, data):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    return Raw(kind, data)


@dataclass(frozen=True)
class Raw:
    """A value as stored in a file: its type and bytes."""

    kind: int
    data: bytes


def encoded(value: Any) -> tuple[int, bytes]:
    """Return the type and the bytes of a metadata value."""
    match value:
        case Raw():
            return value.kind, value.data
        case bool():
            return raw.BOOL, bytes([value])
        case int():
            return raw.UINT32, value.to_bytes(4, "little")
        case float():
            return raw.FLOAT32, np.float32(value).tobytes()
        case str():
            return raw.STRING, raw.string(value)
        case [first, *_]:
            kind = encoded(first)[0]
            items = b"".join(encoded(item)[1] for item in value)
            return raw.ARRAY, kind.to_bytes(4, "little") + len(value).to_bytes(8, "little") + items
    raise TypeError(f"no value of metadata: {value!r}")


def invented(architecture: str, kind: GGMLType = GGMLType.F32, tokenizer: str = "gpt2") -> Model:
    """Return a model of `architecture` with matrices stored as `kind` and the same weights every time."""
    keys = {"general.architecture": architecture}
    own = _COMMON | (OWN | TRANSCRIBING)[architecture]
    keys |= {full_key(key, architecture): value for key, value in own.items()}
    keys |= _TOKENIZERS["whisper" if architecture in TRANSCRIBING else
                        "t5" if architecture in ("t5", "t5encoder", "jina-bert-v3") else
                        "bert" if architecture in ENCODERS else tokenizer]()  # fmt: skip
    model = Model(keys)
    rows = len(keys["tokenizer.ggml.tokens"])
    numbers = _Numbers(kind)
    # Sizes are read from the shapes of these tensors.
    model.tensors["token_embd.weight"] = numbers.matrix((rows, HIDDEN))
    if architecture in TRANSCRIBING:
        model.tensors["a.position_embd.weight"] = numbers.matrix((_WINDOW_STATES, HIDDEN))
    if architecture in ("bert", "gpt2", "starcoder", *TRANSCRIBING):
        model.tensors["position_embd.weight"] = numbers.matrix((CONTEXT, HIDDEN))
    if architecture == "gemma-embedding":
        model.tensors["dense_2.weight"] = numbers.matrix((96, HIDDEN))
    if architecture == "deepseek4":
        table = np.arange(2 * rows, dtype=np.int32) % own["expert_count"]
        model.tensors["blk.0.ffn_gate_tid2eid.weight"] = Tensor((rows, 2), GGMLType.I32, table.tobytes())
    if architecture == "gemma3n":
        model.tensors["blk.0.laurel_l.weight"] = numbers.matrix((8, HIDDEN))
    if "bert" in architecture:
        model.tensors["token_types.weight"] = numbers.matrix((2, HIDDEN))
    if architecture == "qwen4exp":
        model.tensors["per_layer_token_embd.weight"] = numbers.matrix((64, 16))
    if architecture == "mllama":
        model.tensors["output.weight"] = numbers.matrix((rows - 1, HIDDEN))
    # Until the layers' tensors are known.
    placeholders = [f"blk.{layer}.placeholder" for layer in range(own["block_count"])]
    if architecture in ("t5", "t5encoder"):
        placeholders = [f"enc.{name}" for name in placeholders]
    if architecture == "t5":
        placeholders.append("dec.blk.0.placeholder")
    for name in placeholders:
        model.tensors[name] = numbers.vector(1)
    with tempfile.TemporaryDirectory() as folder:
        path = raw.save(Path(folder), model.encode())
        with open_gguf(path) as file:
            architecture_class = model_for(architecture)
            options = architecture_class.read_options(file)
            for name in placeholders:
                del model.tensors[name]
            inventor = _Inventor(model.tensors, numbers)
            architecture_class.load(inventor, options)
            if architecture in TRANSCRIBING:
                WhisperEncoder.load(inventor, WhisperEncoderOptions.of_whisper(file, HIDDEN))
    return model


class _Numbers:
    def __init__(self, kind: GGMLType) -> None:
        self._kind = kind
        self._random = np.random.default_rng(0)

    def matrix(self, shape: tuple[int, ...]) -> Tensor:
        values = (self._random.standard_normal(shape) * 0.2).astype(np.float32)
        kind = GGMLType.F32 if shape[-1] % self._kind.block_size else self._kind
        return Tensor(shape, kind, quantize(values.reshape(-1), kind).tobytes())

    def vector(self, length: int) -> Tensor:
        values = 1 + self._random.standard_normal(length).astype(np.float32) * 0.1
        return Tensor((length,), GGMLType.F32, values.tobytes())


class _Inventor:
    """A weight source that makes up and records every tensor modules request, except biases and factors."""

    def __init__(self, tensors: dict[str, Tensor], numbers: _Numbers) -> None:
        self.ops: Backend = backend_named("reference")
        self._tensors = tensors
        self._numbers = numbers

    def holds(self, name: str) -> bool:
        return True

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        tensor = self._tensors.setdefault(name, self._numbers.matrix(shape))
        return Weight(name, np.frombuffer(tensor.data, np.uint8), tensor.type, shape)

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        tensor = self._tensors.setdefault(name, self._numbers.matrix(shape))
        rows = shape[0] * shape[1]
        weight = Weight(name, np.frombuffer(tensor.data, np.uint8), tensor.type, (rows, shape[2]))
        return ExpertWeights(weight, shape[0])

    def vector(self, name: str, length: int) -> Any:
        if (name.endswith(".bias") and "norm" not in name) or name.startswith("rope_f"):
            return None
        tensor = self._tensors.setdefault(name, self._numbers.vector(length))
        return self.ops.array(np.frombuffer(tensor.data, np.float32).copy())

    def values(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        if name.endswith(".bias"):
            return None
        tensor = self._tensors.setdefault(name, Tensor(shape, GGMLType.F32, bytes(4 * int(np.prod(shape)))))
        return dequantize(np.frombuffer(tensor.data, np.uint8), tensor.type).reshape(shape)


def _byte_level() -> dict[str, Any]:
    tokens = vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges()],
        "tokenizer.ggml.bos_token_id": len(tokens) - 4,
        "tokenizer.ggml.eos_token_id": len(tokens) - 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }


def _transcripts() -> dict[str, Any]:
    found, markers = _byte_level(), TinyWhisper(positions=_WINDOW_STATES).markers
    found["tokenizer.ggml.tokens"] += markers
    found["tokenizer.ggml.token_type"] += [3] * len(markers)
    return found | {"tokenizer.ggml.add_bos_token": False}


def _sentence_piece() -> dict[str, Any]:
    words = ["▁", "▁the", "▁story", "he", "▁he", "l", "o", "w", "e", "h", "t", "s", "r", "y", "▁t", "▁s"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(index) for index in range(len(words))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": True,
    }


def _word_piece() -> dict[str, Any]:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁once", "▁upon", "▁a", "▁time", "ly", "s"]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * (len(words) - 5),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
    }


def _unigram() -> dict[str, Any]:
    return _sentence_piece() | {"tokenizer.ggml.model": "t5", "tokenizer.ggml.remove_extra_whitespaces": True}


_TOKENIZERS = {
    "gpt2": _byte_level,
    "whisper": _transcripts,
    "llama": _sentence_piece,
    "bert": _word_piece,
    "t5": _unigram,
}
