"""The sizes of real models, and the metadata and tensors of their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Floats:
    """A float32 tensor of random values around `mean`."""

    shape: tuple[int, ...]
    mean: float = 1.0
    deviation: float = 0.0


#: Tensors of a layer, by name without the layer's number. A bare shape means a quantised matrix.
Tensors = Mapping[str, Floats | tuple[int, ...]]


@dataclass(frozen=True)
class Shape:
    """The contents of a file of random weights. Unless `untied`, the embedding is also the output matrix."""

    architecture: str
    hidden: int
    vocab: int
    keys: Mapping[str, Any]  # metadata besides those of every shape
    layers: tuple[Tensors, ...]
    control: tuple[str, ...] = ()  # tokens around images
    untied: bool = False


def _attention_keys(heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }


def _attention(hidden: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Floats | tuple[int, ...]]:
    """Return attention tensors with norms of queries and keys."""
    return {
        "attn_q.weight": (heads * head_dim, hidden),
        "attn_k.weight": (kv_heads * head_dim, hidden),
        "attn_v.weight": (kv_heads * head_dim, hidden),
        "attn_q_norm.weight": Floats((head_dim,)),
        "attn_k_norm.weight": Floats((head_dim,)),
        "attn_output.weight": (hidden, heads * head_dim),
    }


def _feed_forward(hidden: int, feed_forward: int) -> dict[str, Floats | tuple[int, ...]]:
    return {
        "ffn_gate.weight": (feed_forward, hidden),
        "ffn_up.weight": (feed_forward, hidden),
        "ffn_down.weight": (hidden, feed_forward),
    }


def llama(
    hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, head_dim: int, vocab: int,
    rope_base: float, experts: int = 0, experts_used: int = 2,
) -> Shape:  # fmt: skip
    """Return the shape of a Llama or, with experts, a Mixtral."""
    keys: dict[str, Any] = {
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head_dim,
        "rope.freq_base": rope_base,
    }
    tensors: dict[str, Floats | tuple[int, ...]] = {
        "attn_norm.weight": Floats((hidden,)),
        "attn_q.weight": (heads * head_dim, hidden),
        "attn_k.weight": (kv_heads * head_dim, hidden),
        "attn_v.weight": (kv_heads * head_dim, hidden),
        "attn_output.weight": (hidden, heads * head_dim),
        "ffn_norm.weight": Floats((hidden,)),
    }
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": experts_used}
        tensors["ffn_gate_inp.weight"] = Floats((experts, hidden), 0.0, hidden**-0.5)
    of, end = ((experts,), "_exps.weight") if experts else ((), ".weight")
    tensors |= {
        f"ffn_gate{end}": (*of, feed_forward, hidden),
        f"ffn_up{end}": (*of, feed_forward, hidden),
        f"ffn_down{end}": (*of, hidden, feed_forward),
    }
    return Shape("llama", hidden, vocab, keys, (tensors,) * layers)


def qwen35(
    hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, memories: int, vocab: int
) -> Shape:
    """Return a Qwen 3.5: every fourth layer attends, others are gated delta nets with `memories` heads."""
    head_dim, dim, taps = 256, 128, 4
    keys = {
        "feed_forward_length": feed_forward,
        **_attention_keys(heads, kv_heads, head_dim),
        "rope.dimension_count": head_dim // 4,
        "rope.dimension_sections": [11, 11, 10, 0],
        "rope.freq_base": 1e7,
        "full_attention_interval": 4,
        "ssm.conv_kernel": taps,
        "ssm.state_size": dim,
        "ssm.group_count": memories,
        "ssm.time_step_rank": memories,
        "ssm.inner_size": memories * dim,
    }
    feeding = {
        "attn_norm.weight": Floats((hidden,)),
        "post_attention_norm.weight": Floats((hidden,)),
        **_feed_forward(hidden, feed_forward),
    }
    delta = {
        "attn_qkv.weight": (3 * memories * dim, hidden),
        "attn_gate.weight": (memories * dim, hidden),
        "ssm_beta.weight": (memories, hidden),
        "ssm_alpha.weight": (memories, hidden),
        "ssm_conv1d.weight": Floats((3 * memories * dim, taps), 0.0, 0.5),
        "ssm_dt.bias": Floats((memories,), -3.0, 1.0),
        "ssm_a": Floats((memories,), -4.0, 1.0),
        "ssm_norm.weight": Floats((dim,)),
        "ssm_out.weight": (hidden, memories * dim),
    }
    attention = _attention(hidden, heads, kv_heads, head_dim)
    attention["attn_q.weight"] = (2 * heads * head_dim, hidden)  # and the gates of the heads' outputs
    kinds = tuple((attention if i % 4 == 3 else delta) | feeding for i in range(layers))
    return Shape("qwen35", hidden, vocab, keys, kinds)


def gemma3(
    hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, window: int, vocab: int,
    head_dim: int = 256,
) -> Shape:  # fmt: skip
    """Return a Gemma 3: five of six layers attend to a window of the last positions."""
    keys = {
        "feed_forward_length": feed_forward,
        **_attention_keys(heads, kv_heads, head_dim),
        "attention.sliding_window": window,
        "rope.freq_base": 1e6,
    }
    tensors = {
        "attn_norm.weight": Floats((hidden,)),
        **_attention(hidden, heads, kv_heads, head_dim),
        "post_attention_norm.weight": Floats((hidden,)),
        "ffn_norm.weight": Floats((hidden,)),
        **_feed_forward(hidden, feed_forward),
        "post_ffw_norm.weight": Floats((hidden,)),
    }
    return Shape("gemma3", hidden, vocab, keys, (tensors,) * layers)


def qwen3(hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, vocab: int) -> Shape:
    head_dim = 128
    keys = {
        "feed_forward_length": feed_forward,
        **_attention_keys(heads, kv_heads, head_dim),
        "rope.freq_base": 1e6,
    }
    tensors = {
        "attn_norm.weight": Floats((hidden,)),
        **_attention(hidden, heads, kv_heads, head_dim),
        "ffn_norm.weight": Floats((hidden,)),
        **_feed_forward(hidden, feed_forward),
    }
    return Shape("qwen3", hidden, vocab, keys, (tensors,) * layers)


def qwen3moe(
    hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, experts: int, experts_used: int,
    vocab: int,
) -> Shape:  # fmt: skip
    """Return a Qwen 3 with experts of `feed_forward` numbers each."""
    head_dim = 128
    keys = {
        "feed_forward_length": 3 * feed_forward,
        "expert_feed_forward_length": feed_forward,
        "expert_count": experts,
        "expert_used_count": experts_used,
        **_attention_keys(heads, kv_heads, head_dim),
        "rope.freq_base": 1e6,
    }
    tensors = {
        "attn_norm.weight": Floats((hidden,)),
        **_attention(hidden, heads, kv_heads, head_dim),
        "ffn_norm.weight": Floats((hidden,)),
        "ffn_gate_inp.weight": Floats((experts, hidden), 0.0, hidden**-0.5),
        "ffn_gate_exps.weight": (experts, feed_forward, hidden),
        "ffn_up_exps.weight": (experts, feed_forward, hidden),
        "ffn_down_exps.weight": (experts, hidden, feed_forward),
    }
    return Shape("qwen3moe", hidden, vocab, keys, (tensors,) * layers)


def qwen3vl(
    hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, deepstack: int, vocab: int
) -> Shape:
    """Return a Qwen3-VL's text model, with deep image features in its first `deepstack` layers."""
    head_dim = 128
    keys = {
        "feed_forward_length": feed_forward,
        **_attention_keys(heads, kv_heads, head_dim),
        "rope.freq_base": 5e6,
        "rope.dimension_sections": [24, 20, 20, 0],
        "n_deepstack_layers": deepstack,
    }
    tensors = {
        "attn_norm.weight": Floats((hidden,)),
        **_attention(hidden, heads, kv_heads, head_dim),
        "ffn_norm.weight": Floats((hidden,)),
        **_feed_forward(hidden, feed_forward),
    }
    around = ("<|vision_start|>", "<|vision_end|>")
    return Shape("qwen3vl", hidden, vocab, keys, (tensors,) * layers, around)


def deepseek2(
    hidden: int, feed_forward: int, expert_size: int, layers: int, heads: int, experts: int,
    experts_used: int, vocab: int,
) -> Shape:  # fmt: skip
    """Return a DeepSeek V2: latents of 512 numbers, and experts in all layers but the first, two shared."""
    rank, nope, rope, value, shared = 512, 128, 64, 128, 2
    keys = {
        "feed_forward_length": feed_forward,
        "expert_feed_forward_length": expert_size,
        "expert_count": experts,
        "expert_used_count": experts_used,
        "expert_shared_count": shared,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": False,
        "expert_gating_func": 1,
        "leading_dense_block_count": 1,
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 0,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": value,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": rope,
        "rope.freq_base": 10000.0,
    }
    attention = {
        "attn_norm.weight": Floats((hidden,)),
        "attn_q.weight": (heads * (nope + rope), hidden),
        "attn_kv_a_mqa.weight": (rank + rope, hidden),
        "attn_kv_a_norm.weight": Floats((rank,)),
        "attn_k_b.weight": (heads, rank, nope),
        "attn_v_b.weight": (heads, value, rank),
        "attn_output.weight": (hidden, heads * value),
        "ffn_norm.weight": Floats((hidden,)),
    }
    dense = _feed_forward(hidden, feed_forward)
    routed = {
        "ffn_gate_inp.weight": Floats((experts, hidden), 0.0, hidden**-0.5),
        "ffn_gate_exps.weight": (experts, expert_size, hidden),
        "ffn_up_exps.weight": (experts, expert_size, hidden),
        "ffn_down_exps.weight": (experts, hidden, expert_size),
        "ffn_gate_shexp.weight": (shared * expert_size, hidden),
        "ffn_up_shexp.weight": (shared * expert_size, hidden),
        "ffn_down_shexp.weight": (hidden, shared * expert_size),
    }
    kinds = (attention | dense, *((attention | routed,) * (layers - 1)))
    return Shape("deepseek2", hidden, vocab, keys, kinds)


def gpt_oss(layers: int, experts: int) -> Shape:
    hidden, heads, kv_heads, head_dim, used = 2880, 64, 8, 64, 4
    keys = {
        "feed_forward_length": hidden,
        "expert_feed_forward_length": hidden,
        "expert_count": experts,
        "expert_used_count": used,
        **_attention_keys(heads, kv_heads, head_dim),
        "attention.sliding_window": 128,
        "rope.freq_base": 150000.0,
    }
    tensors = {
        "attn_norm.weight": Floats((hidden,)),
        "attn_q.weight": (heads * head_dim, hidden),
        "attn_q.bias": Floats((heads * head_dim,)),
        "attn_k.weight": (kv_heads * head_dim, hidden),
        "attn_k.bias": Floats((kv_heads * head_dim,)),
        "attn_v.weight": (kv_heads * head_dim, hidden),
        "attn_v.bias": Floats((kv_heads * head_dim,)),
        "attn_output.weight": (hidden, heads * head_dim),
        "attn_output.bias": Floats((hidden,)),
        "attn_sinks.weight": Floats((heads,)),
        "post_attention_norm.weight": Floats((hidden,)),
        "ffn_gate_inp.weight": Floats((experts, hidden)),
        "ffn_gate_inp.bias": Floats((experts,)),
        "ffn_gate_exps.weight": (experts, hidden, hidden),
        "ffn_gate_exps.bias": Floats((experts, hidden)),
        "ffn_up_exps.weight": (experts, hidden, hidden),
        "ffn_up_exps.bias": Floats((experts, hidden)),
        "ffn_down_exps.weight": (experts, hidden, hidden),
        "ffn_down_exps.bias": Floats((experts, hidden)),
    }
    return Shape("gpt-oss", hidden, 201088, keys, (tensors,) * layers, untied=True)


def with_head(shape: Shape) -> Shape:
    """Return the shape with a prediction head, whose layer equals the last."""
    head = {
        **shape.layers[-1],
        "nextn.eh_proj.weight": (shape.hidden, 2 * shape.hidden),
        "nextn.enorm.weight": Floats((shape.hidden,)),
        "nextn.hnorm.weight": Floats((shape.hidden,)),
    }
    keys = {**shape.keys, "nextn_predict_layers": 1}
    return replace(shape, keys=keys, layers=(*shape.layers, head))


def gemma3_1b(*control: str) -> Shape:
    """Return Gemma 3 1B, but with a hidden size of whole super-blocks instead of 1152."""
    return replace(gemma3(1280, 6912, 26, 4, 1, 512, 262144), control=control)


SHAPES = {
    "135m": llama(576, 1536, 30, 9, 3, 64, 49152, 10000.0),  # SmolLM 135M
    "135m-draft": llama(256, 768, 6, 4, 2, 64, 49152, 10000.0),  # same vocabulary, an eighth of the size
    "1b": llama(2048, 8192, 16, 32, 8, 64, 128256, 500000.0),  # Llama 3.2 1B
    "8x150m": llama(1024, 3584, 16, 16, 8, 64, 32000, 1e6, experts=8),  # a small Mixtral
    "3b": llama(3072, 8192, 28, 24, 8, 128, 128256, 500000.0),  # Llama 3.2 3B
    "8b": llama(4096, 14336, 32, 32, 8, 128, 128256, 500000.0),  # Llama 3.1 8B
    "delta-0.1b-mtp": with_head(qwen35(512, 1536, 24, 4, 1, 4, 49152)),
    "delta-0.8b": qwen35(1024, 3584, 24, 8, 2, 16, 248320),  # Qwen 3.5 0.8B
    "windowed-1b": gemma3_1b(),
    "windowed-1b-with-images": gemma3_1b("<start_of_image>", "<end_of_image>"),
    "qwen3vl-1.7b": qwen3vl(2048, 6144, 28, 16, 8, 3, 151936),  # Qwen3-VL 2B
    # Qwen 3 30B-A3B at half the width, with a quarter of the layers
    "experts-2.5b": qwen3moe(1024, 512, 12, 16, 4, 128, 8, 49152),
    # DeepSeek V2 Lite with fewer layers, and experts of a third of the size
    "latent-1.7b": deepseek2(2048, 5632, 512, 8, 16, 64, 6, 49152),
}
