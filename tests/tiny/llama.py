"""Tiny random models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import GGMLType, GGUFWriter

#: Text of the special tokens that follow the 256 byte tokens and the merged ones.
SPECIALS = ("<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>")

#: A few words every tiny vocabulary can merge to single tokens.
WORDS = (" the", " story", "hello", " world", "once", " upon", " time")

#: The rotation of Llama 3.1 and later, for contexts as short as those of tests.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass
class TinyLlama:
    """Sizes of a tiny Llama, or a Mixtral if there are experts; the defaults make about 60,000 parameters."""

    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    context: int = 256
    tied: bool = False
    rope_base: float = 10000.0
    rope_scaling: dict[str, Any] | None = None  # as in a Hugging Face config, type llama3 or linear
    experts: int = 0  # 0: an ordinary feed-forward network
    experts_used: int = 2  # per token
    expert_tensors: str = "stacked"  # "single": one tensor per expert; "joined": gate and up in one
    words: tuple[str, ...] = WORDS  # each a token
    seed: int = 0
    scale: float = 0.4  # of the random weights, large enough for a clear best token

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

        torch.default_generator.manual_seed(self.seed)
        sizes = {
            "vocab_size": len(vocabulary(self.words)),
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_theta": self.rope_base,
                **(self.rope_scaling or {"rope_type": "default"}),
            },
        }
        model: Any
        if self.experts:
            experts = {"num_local_experts": self.experts, "num_experts_per_tok": self.experts_used}
            model = MixtralForCausalLM(MixtralConfig(**sizes, **experts))
        else:
            model = LlamaForCausalLM(LlamaConfig(**sizes))
        model = model.float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                else:
                    parameter.copy_(self.scale * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5 * 2)
        return model


def byte_alphabet() -> list[str]:
    """Return GPT-2's printable stand-ins for the 256 bytes, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in stand_ins:
            stand_ins[byte] = chr(256 + len(stand_ins) - len(printable))
    return [stand_ins[byte] for byte in range(256)]


def vocabulary(words: Sequence[str] = WORDS) -> list[str]:
    """Return 256 bytes, the merged tokens of `words`, and `SPECIALS`."""
    return [*byte_alphabet(), *(left + right for left, right in merges(words)), *SPECIALS]


def merges(words: Sequence[str] = WORDS) -> list[tuple[str, str]]:
    """Return merges that build each of `words` from the left."""
    alphabet = byte_alphabet()
    found: list[tuple[str, str]] = []
    for word in words:
        symbols = [alphabet[byte] for byte in word.encode()]
        for end in range(1, len(symbols)):
            pair = ("".join(symbols[:end]), symbols[end])
            if pair not in found:
                found.append(pair)
    return found


def tiny_llama_gguf(
    path: Path,
    config: TinyLlama | None = None,
    *,
    model: Any = None,
    kind: GGMLType = GGMLType.F32,
    chat_template: str | None = CHATML,
    endless: bool = False,
    pre: str = "gpt-2",
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Write a tiny Llama with further `keys` to `path` (its matrices as `kind`) and return the path.

    An `endless` model has no end token: it generates until it is stopped.
    """
    config = config or TinyLlama()
    model = model or config.build()
    writer = GGUFWriter(path, "llama")
    writer.add("general.name", "Tiny Llama")
    writer.add("general.file_type", {GGMLType.F32: 0, GGMLType.F16: 1, GGMLType.Q8_0: 7}.get(kind, 15))
    writer.add("llama.block_count", config.layers)
    writer.add("llama.context_length", config.context)
    writer.add("llama.embedding_length", config.hidden)
    writer.add("llama.feed_forward_length", config.feed_forward)
    writer.add("llama.attention.head_count", config.heads)
    writer.add("llama.attention.head_count_kv", config.kv_heads)
    writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add("llama.rope.dimension_count", config.hidden // config.heads)
    writer.add("llama.rope.freq_base", config.rope_base)
    if config.experts:
        writer.add("llama.expert_count", config.experts)
        writer.add("llama.expert_used_count", config.experts_used)
    if config.rope_scaling and config.rope_scaling["rope_type"] == "linear":
        writer.add("llama.rope.scaling.type", "linear")
        writer.add("llama.rope.scaling.factor", float(config.rope_scaling["factor"]))
    add_tokenizer(writer, chat_template, endless=endless, pre=pre, words=config.words)
    for name, item in (keys or {}).items():
        writer.add(name, item)
    for name, array in llama_tensors(model, config).items():
        quantised = array.ndim > 1 and "ffn_gate_inp" not in name  # routers keep their type
        writer.add_tensor(name, array, kind if quantised else GGMLType.F32)
    writer.write()
    return path


def add_tokenizer(
    writer: GGUFWriter,
    chat_template: str | None = CHATML,
    *,
    endless: bool = False,
    markers: Sequence[str] = (),
    pre: str = "gpt-2",
    words: Sequence[str] = WORDS,
) -> None:
    """Add the byte-level BPE vocabulary of all tiny models, then non-text `markers`.

    `endless` leaves out all tokens that end a text.
    """
    tokens = vocabulary(words)
    writer.add("tokenizer.ggml.model", "gpt2")
    writer.add("tokenizer.ggml.pre", pre)
    types = [3 if token in SPECIALS else 1 for token in tokens]
    if endless:  # tokens spelled like these end a text whatever the metadata says
        tokens = [
            token if kind == 1 else f"<|control {i}|>"
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        ]
    writer.add("tokenizer.ggml.tokens", [*tokens, *markers])
    writer.add("tokenizer.ggml.token_type", [*types, *[3] * len(markers)])
    writer.add("tokenizer.ggml.merges", [f"{left} {right}" for left, right in merges(words)])
    begin, end, _, turn_end = range(len(tokens) - len(SPECIALS), len(tokens))
    writer.add("tokenizer.ggml.bos_token_id", begin)
    if not endless:
        writer.add("tokenizer.ggml.eos_token_id", end)
        writer.add("tokenizer.ggml.eot_token_id", turn_end)
    writer.add("tokenizer.ggml.add_bos_token", True)
    if chat_template is not None:
        writer.add("tokenizer.chat_template", chat_template)


def llama_tensors(model: Any, config: TinyLlama) -> dict[str, np.ndarray]:
    """Return the GGUF tensors of `model`, with queries and keys permuted for neighbouring rotary pairs."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not config.tied:
        tensors["output.weight"] = state["lm_head.weight"]
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
    }  # fmt: skip
    if config.experts:
        names["mlp.gate"] = "ffn_gate_inp"
    else:
        names |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    for i in range(config.layers):
        for theirs, ours in names.items():
            array = state[f"model.layers.{i}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                heads = config.heads if ours == "attn_q" else config.kv_heads
                array = permute(array, heads)
            tensors[f"blk.{i}.{ours}.weight"] = np.ascontiguousarray(array)
        if config.experts:
            experts = {
                part: state[f"model.layers.{i}.mlp.experts.{part}_proj"] for part in ("gate_up", "down")
            }
            tensors |= expert_tensors(
                f"blk.{i}.ffn", experts["gate_up"], experts["down"], config.expert_tensors
            )
    if config.rope_scaling and config.rope_scaling["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config)
    return tensors


def expert_tensors(prefix: str, gate_up: np.ndarray, down: np.ndarray, form: str) -> dict[str, np.ndarray]:
    """Return a layer's experts in one of the forms; stacks are [experts, out, in], gates before ups."""
    if form == "joined":
        return {f"{prefix}_gate_up_exps.weight": gate_up, f"{prefix}_down_exps.weight": down}
    gate, up = (np.ascontiguousarray(half) for half in np.split(gate_up, 2, axis=1))
    parts = {"gate": gate, "up": up, "down": down}
    if form == "stacked":
        return {f"{prefix}_{part}_exps.weight": stack for part, stack in parts.items()}
    return {
        f"{prefix}_{part}.{expert}.weight": matrix
        for part, stack in parts.items()
        for expert, matrix in enumerate(stack)
    }


def permute(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows of each head from (first halves, second halves) to neighbouring pairs."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama3_factors(config: TinyLlama) -> np.ndarray:
    """Return Llama 3.1's divisors of rotary frequencies, computed by transformers."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config.build().config, torch.device("cpu"))
    dims = config.hidden // config.heads
    plain = config.rope_base ** (-np.arange(0, dims, 2) / dims)
    return (plain / scaled.numpy()).astype(np.float32)
