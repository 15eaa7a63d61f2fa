"""Tiny random encoders other than BERT, as GGUF files and as their references."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.convert.checkpoints import saved_with_words
from tests.convert.nomic import save_nomic, save_nomic_moe
from tests.tiny.bert import randomised
from tests.tiny.converted import Contents, converted
from tests.tiny.words import VOCABULARY

SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class TinyEncoder:
    """Sizes of a tiny encoder, and metadata of its file."""

    pooling_type: int = 1
    seed: int = 0

    @abstractmethod
    def build(self) -> Any:
        """Return the reference, float32, random weights; calling it gives a `last_hidden_state`."""

    def save(self, folder: Path, model: Any) -> Path:
        """Save `model` in `folder` as published; return the folder."""
        return saved_with_words(folder, model)

    def contents(self, model: Any) -> Contents:
        """Return the contents of the file of `model`."""
        found = converted(model, self.save)
        found.set({"pooling_type": self.pooling_type})
        self.change(found)
        return found

    def change(self, found: Contents) -> None:
        """Change the converted contents into another layout."""


@dataclass(frozen=True)
class TinyNomicBert(TinyEncoder):
    def build(self) -> Any:
        from transformers import NomicBertConfig, NomicBertModel

        torch.default_generator.manual_seed(self.seed)
        return randomised(NomicBertModel(NomicBertConfig(**SIZES)).float().eval())

    def save(self, folder: Path, model: Any) -> Path:
        return save_nomic(folder, model)


@dataclass(frozen=True)
class TinyJinaBertV3(TinyEncoder):
    vocabulary: int = SIZES["vocab_size"]

    def build(self) -> Any:
        from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

        torch.default_generator.manual_seed(self.seed)
        sizes = SIZES | {"vocab_size": self.vocabulary}
        config = JinaEmbeddingsV3Config(**sizes, layer_norm_eps=1e-12)
        return randomised(JinaEmbeddingsV3Model(config, add_pooling_layer=False).float().eval())


@dataclass(frozen=True)
class TinyModernBert(TinyEncoder):
    """ModernBERT with a window shorter than the longest texts."""

    activation: str = "gelu"
    window: int = 12
    vocabulary: int = SIZES["vocab_size"]

    def build(self) -> Any:
        from transformers import ModernBertConfig, ModernBertModel

        torch.default_generator.manual_seed(self.seed)
        sizes = SIZES | {"vocab_size": self.vocabulary}
        config = ModernBertConfig(
            **sizes, local_attention=self.window, hidden_activation=self.activation, norm_eps=1e-12
        )
        return randomised(ModernBertModel(config).float().eval())


class _Matrices(torch.nn.Module):
    """Stacked matrices of all experts: up, and down transposed."""

    def __init__(self, rows: int, hidden: int) -> None:
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.empty(rows, hidden))
        self.w2 = torch.nn.Parameter(torch.empty(rows, hidden))


class NomicExperts(torch.nn.Module):
    """Feed-forward half of a layer of Nomic Embed 2, which transformers lacks."""

    def __init__(self, hidden: int, width: int, experts: int, used: int) -> None:
        super().__init__()
        self.count, self.used = experts, used
        self.router = torch.nn.ModuleDict({"layer": torch.nn.Linear(hidden, experts, bias=False)})
        self.experts = torch.nn.ModuleDict({"mlp": _Matrices(experts * width, hidden)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router["layer"](x).softmax(-1)
        best, chosen = shares.topk(self.used, dim=-1)
        ups, downs = (each.chunk(self.count) for each in (self.experts["mlp"].w1, self.experts["mlp"].w2))
        every = torch.stack(
            [torch.nn.functional.gelu(x @ up.T) @ down for up, down in zip(ups, downs, strict=True)], dim=-2
        )  # [..., experts, hidden]
        picked = every.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        return (picked * best[..., None]).sum(-2)


@dataclass(frozen=True)
class TinyNomicBertMoe(TinyEncoder):
    """XLM-RoBERTa with Jina's rotation, and experts in the second layer."""

    experts: int = 8
    used: int = 2

    def build(self) -> Any:
        from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

        torch.default_generator.manual_seed(self.seed)
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        config = JinaEmbeddingsV3Config(**SIZES, layer_norm_eps=1e-12, rope_parameters=rope)
        model = JinaEmbeddingsV3Model(config, add_pooling_layer=False).float().eval()
        sizes = SIZES["hidden_size"], SIZES["intermediate_size"]
        model.layers[1].mlp = NomicExperts(*sizes, self.experts, self.used)
        return randomised(model)

    def save(self, folder: Path, model: Any) -> Path:
        return save_nomic_moe(folder, model, experts=self.experts, used=self.used)


def tiny_encoder_gguf(
    path: Path, config: TinyEncoder, *, model: Any = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a tiny encoder to `path` and return it. `metadata` (without a prefix) replaces; None drops."""
    found = config.contents(model or config.build())
    found.set(metadata or {})
    return found.write(path)
