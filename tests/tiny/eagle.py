"""Tiny random EAGLE-3 heads, saved as published ones are, and what they compute.

transformers has no such heads, so the reference is the modelling code that vLLM's speculators train, written
anew with the attention and feed-forward networks of transformers. All positions are computed at once, and
nothing is cached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from puna.convert import convert
from puna.gguf import FileType
from tests.convert.checkpoints import save_tokenizer, saved
from tests.model.models.parity import original
from tests.tiny.decoders import QWEN2, TinyDecoder
from tests.tiny.gemmas import TinyGemma4
from tests.tiny.llama import LLAMA3_ROPE, TinyLlama, vocabulary

VOCABULARY = len(vocabulary())
#: What a layer's results are multiplied by where models and heads shall agree.
_LITTLE = 0.02


@dataclass(frozen=True)
class Repeating:
    """The model `tiny`, whose layers add little, so that with tied weights it mostly repeats tokens."""

    tiny: Any

    def build(self) -> Any:
        model = self.tiny.build()
        soften(model)
        return model


def soften(model: torch.nn.Module) -> None:
    """Make layers add little."""
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                values.mul_(_LITTLE)


class Layer(torch.nn.Module):
    """The layer of a head, which reads embeddings and states."""

    def __init__(self, config: Any, *, norm_before_residual: bool) -> None:
        from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            before = getattr(self.self_attn, name)
            wider = torch.nn.Linear(2 * size, before.out_features, bias=config.attention_bias)
            setattr(self.self_attn, name, wider)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self.norm_before_residual = norm_before_residual

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, ropes: Any) -> torch.Tensor:
        """Return the states [1, rows, hidden] of neighbouring rows, each of which sees those before it."""
        count, normed = embedded.shape[1], self.hidden_norm(states)
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        joined = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        mixed, _ = self.self_attn(joined, position_embeddings=ropes, attention_mask=mask)
        found = mixed + (normed if self.norm_before_residual else states)
        return found + self.mlp(self.post_attention_layernorm(found))


class Head(torch.nn.Module):
    """A head, whose tensors have the names of its authors' checkpoints."""

    def __init__(self, tiny: TinyEagle3) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

        super().__init__()
        layer, features = tiny.layer_config(), 3 * tiny.target_size
        size, eps = layer.hidden_size, layer.rms_norm_eps
        self.config = SimpleNamespace(**tiny.config())
        self.rotation = [LlamaRotaryEmbedding(layer)]  # in a list, because it has no tensors to be saved
        self.midlayer = Layer(layer, norm_before_residual=tiny.norm_before_residual)
        self.fc = torch.nn.Linear(features, size, bias=False)
        self.norm = LlamaRMSNorm(size, eps)
        self.input_norm = LlamaRMSNorm(features, eps) if tiny.norm_before_fc else None
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, size) if tiny.own_embedding else None
        outputs = tiny.draft_vocabulary or VOCABULARY
        self.lm_head = torch.nn.Linear(size, outputs, bias=False) if tiny.own_output else None
        if tiny.draft_vocabulary:
            chosen = torch.randperm(VOCABULARY)[:outputs].sort().values
            self.register_buffer("d2t", chosen - torch.arange(outputs))
            self.register_buffer("t2d", torch.isin(torch.arange(VOCABULARY), chosen))


@dataclass(frozen=True)
class TinyEagle3:
    """Head that drafts for `target` from the inputs of `layers`.

    If `agreeing`, it repeats the last token that it has seen the state of, as a `Repeating` target does.
    """

    target: Any = field(default_factory=lambda: TinyLlama(layers=4))
    layers: tuple[int, int, int] = (3, 1, 2)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its layer
    target_size: int = 64
    draft_vocabulary: int = 0  # 0: all tokens of the target
    own_embedding: bool = True
    own_output: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    agreeing: bool = False
    published: Mapping[str, Any] = field(default_factory=dict)  # settings to change; None drops one
    speculators: bool = False  # whether it is saved as by vLLM's speculators
    seed: int = 0

    def layer_settings(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 1,
            "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 12, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 128, "attention_bias": False, "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "model_type": "llama",
            **self.settings,
        }  # fmt: skip

    def layer_config(self) -> Any:
        from transformers import LlamaConfig

        known = {name: value for name, value in self.layer_settings().items() if name != "model_type"}
        config = LlamaConfig(**known)
        config._attn_implementation = "eager"
        return config

    def config(self) -> dict[str, Any]:
        """Return the published settings."""
        layer = self.layer_settings()
        found = {
            **({"transformer_layer_config": layer} if self.speculators else layer),
            "draft_vocab_size": self.draft_vocabulary or VOCABULARY, "tie_word_embeddings": False,
            "norm_before_residual": self.norm_before_residual, "norm_before_fc": self.norm_before_fc,
            "eagle_aux_hidden_state_layer_ids": list(self.layers), "target_hidden_size": self.target_size,
        }  # fmt: skip
        if self.speculators:
            found |= {
                "speculators_model_type": "eagle3", "speculators_version": "0.3.0",
                "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a model"}},
            }  # fmt: skip
        found |= self.published
        return {name: value for name, value in found.items() if value is not None}

    def build(self) -> Any:
        """Return the head, float32, with random weights."""
        torch.default_generator.manual_seed(self.seed)
        head = Head(self).float().eval()
        with torch.no_grad():
            for name, values in head.named_parameters():
                if name.endswith("norm.weight"):
                    values.copy_(1 + 0.2 * torch.randn_like(values))
                elif name.endswith("bias"):
                    values.copy_(0.3 * torch.randn_like(values))
                else:
                    values.copy_(torch.randn_like(values) / values.shape[-1] ** 0.5)
            if self.agreeing:
                soften(head)
                size = self.target_size
                head.fc.weight.copy_(torch.cat([torch.eye(size)] * 3, dim=1) / 3)
        return head

    def save(self, folder: Path) -> Path:
        """Save the head as published; return the folder."""
        folder.mkdir()
        head = original(self)
        state = {
            name.replace("midlayer.", "layers.0.") if self.speculators else name: values.contiguous()
            for name, values in head.state_dict().items()
        }
        save_file(state, folder / "model.safetensors")
        name = "Eagle3Speculator" if self.speculators else "LlamaForCausalLMEagle3"
        (folder / "config.json").write_text(json.dumps({"architectures": [name], **self.config()}))
        return folder


def eagle3_files(folder: Path, tiny: TinyEagle3) -> tuple[Path, Path]:
    """Convert target and head in `folder`; return their files."""
    target = saved(folder / "target", original(tiny.target))
    convert(target, folder / "target.gguf", FileType.F32)
    convert(tiny.save(folder / "head"), folder / "head.gguf", FileType.F32, target_model=target)
    return folder / "target.gguf", folder / "head.gguf"


def save_target_settings(folder: Path, **settings: Any) -> Path:
    """Save what a head's conversion needs of its target: settings and vocabulary; return the folder."""
    folder.mkdir()
    usual = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 7, "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps({**usual, **settings}))
    save_tokenizer(folder)
    return folder


class Eagle3Reference:
    """A head behind its target."""

    def __init__(self, tiny: TinyEagle3) -> None:
        self.tiny = tiny
        self.target, self.head = original(tiny.target), original(tiny)
        self.body = getattr(self.target.model, "language_model", self.target.model)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the states [tokens, hidden] that the target's layers give for `tokens`."""
        places, found = [*self.body.layers, self.body.norm], dict[int, torch.Tensor]()

        def note(layer: int) -> Any:
            def hook(_: Any, args: Any, kwargs: Any) -> None:
                found[layer] = args[0] if args else kwargs["hidden_states"]

            return hook

        hooks = [
            places[layer].register_forward_pre_hook(note(layer), with_kwargs=True)
            for layer in {*self.tiny.layers}
        ]
        self.body(torch.tensor([list(tokens)]), use_cache=False)
        for each in hooks:
            each.remove()
        features = torch.cat([found[layer][0] for layer in self.tiny.layers], dim=-1)
        if self.head.input_norm is not None:
            features = self.head.input_norm(features)
        return self.head.fc(features)

    @torch.inference_mode()
    def look_ahead(self, states: torch.Tensor, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states [rows, hidden] and logits [rows, vocab] of `tokens`, the second one and later.

        `states` [rows, hidden] are those of the positions before them.
        """
        embedding = self.head.embed_tokens or self.target.get_input_embeddings()
        positions = torch.arange(1, 1 + len(tokens))[None]
        embedded = torch.nn.functional.embedding(torch.tensor([list(tokens)]), embedding.weight)
        made = self.head.midlayer(embedded, states[None], self.head.rotation[0](embedded, positions))[0]
        output = self.head.lm_head or self.target.get_output_embeddings()
        logits = torch.nn.functional.linear(self.head.norm(made), output.weight)
        if not self.tiny.draft_vocabulary:
            return made, logits
        every = torch.full((len(tokens), VOCABULARY), -torch.inf)
        every[:, torch.arange(logits.shape[1]) + self.head.d2t] = logits
        return made, every

    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """Return the likeliest tokens after `tokens`, one after another."""
        states, found = self.read(tokens[:-1]), list[int]()
        for _ in range(count):
            made, logits = self.look_ahead(states, [*tokens[1:], *found])
            found.append(int(logits[-1].argmax()))
            states = torch.cat([states, made[-1:]])
        return found


_YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32,
    "beta_fast": 16.0, "beta_slow": 2.0,
}  # fmt: skip
_WIDE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 20}
_QWEN3 = TinyDecoder("qwen3", {"head_dim": 24, "num_hidden_layers": 5}, seed=310)
#: Heads with every feature, for targets of several kinds.
EAGLES = {
    "part of the vocabulary": TinyEagle3(draft_vocabulary=100, seed=300),
    "the target's tables": TinyEagle3(own_embedding=False, own_output=False, settings=_WIDE, seed=301),
    "speculators, norms first": TinyEagle3(
        target=_QWEN3, layers=(0, 5, 2), norm_before_residual=True, norm_before_fc=True, speculators=True,
        draft_vocabulary=90, seed=302,
    ),
    "llama 3's rotation, biases": TinyEagle3(
        settings={"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500.0}, "attention_bias": True},
        norm_before_fc=True, seed=303,
    ),
    "yarn, the target's output": TinyEagle3(
        settings=_WIDE | {"rope_parameters": _YARN}, own_output=False, norm_before_residual=True, seed=304,
    ),
    "linear, all tokens": TinyEagle3(
        target=QWEN2, layers=(1, 0, 1), own_embedding=False,
        settings=_WIDE | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
        seed=305,
    ),
    "gemma 4 with shared keys": TinyEagle3(
        target=TinyGemma4(settings={"num_kv_shared_layers": 2}, layer_inputs=16, seed=311), layers=(4, 2, 5),
        draft_vocabulary=120, seed=306,
    ),
}  # fmt: skip
#: Targets and heads that agree on most tokens: with a plain cache, and with windows.
_BORROWING = {"own_embedding": False, "own_output": False, "settings": _WIDE}
_WINDOWED = TinyDecoder(
    "mistral", {"num_hidden_layers": 4, "sliding_window": 12, "tie_word_embeddings": True}, seed=313
)
AGREEING = {
    "eagle3": TinyEagle3(
        target=Repeating(TinyLlama(layers=4, tied=True, seed=312)), agreeing=True, seed=307, **_BORROWING,
    ),
    "eagle3 on windows": TinyEagle3(
        target=Repeating(_WINDOWED), agreeing=True, seed=308, **_BORROWING,
    ),
}  # fmt: skip
WILD = {
    "eagle3": EAGLES["part of the vocabulary"],
    "eagle3 on windows": TinyEagle3(target=_WINDOWED, draft_vocabulary=150, seed=309),
}
