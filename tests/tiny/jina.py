"""Tiny random models of Jina Embeddings 2 and the first rerankers, which transformers lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.convert.jina import save_jina2
from tests.tiny.bert import randomised
from tests.tiny.converted import Contents
from tests.tiny.encoders import SIZES, TinyEncoder

HIDDEN, FEED_FORWARD = 96, SIZES["intermediate_size"]
HEADS = 6  # not a power of two


class _Layer(nn.Module):
    """Layer with published names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        own: dict[str, nn.Module] = {name: nn.Linear(HIDDEN, HIDDEN) for name in ("query", "key", "value")}
        if kind == "code":
            own |= {f"layer_norm_{name}": nn.LayerNorm(HIDDEN) for name in "qk"}
        after = {"dense": nn.Linear(HIDDEN, HIDDEN), "LayerNorm": nn.LayerNorm(HIDDEN)}
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(own), "output": nn.ModuleDict(after)})
        down, both = nn.Linear(FEED_FORWARD, HIDDEN), nn.Linear(HIDDEN, 2 * FEED_FORWARD, bias=False)
        if kind == "plain":
            self.intermediate = nn.ModuleDict({"dense": nn.Linear(HIDDEN, FEED_FORWARD)})
            self.output = nn.ModuleDict({"dense": down, "LayerNorm": nn.LayerNorm(HIDDEN)})
        elif kind == "code":
            self.layer_norm_1, self.layer_norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.mlp = nn.ModuleDict({"up_gated_layer": both, "down_layer": down})
        else:
            self.mlp = nn.ModuleDict({"gated_layers": both, "wo": down, "layernorm": nn.LayerNorm(HIDDEN)})

    def forward(self, x: Tensor) -> Tensor:
        own, after, count = self.attention["self"], self.attention["output"], len(x)
        q, k, v = own["query"](x), own["key"](x), own["value"](x)
        if self.kind == "code":
            q, k = own["layer_norm_q"](q), own["layer_norm_k"](k)
        q, k, v = (each.reshape(count, HEADS, -1).transpose(0, 1) for each in (q, k, v))
        distance = (torch.arange(count)[:, None] - torch.arange(count)).abs()
        slopes = torch.tensor(alibi_slopes(HEADS))[:, None, None]
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) - slopes * distance
        mixed = after["dense"]((scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1))
        hidden = after["LayerNorm"](mixed + x)
        if self.kind == "plain":
            wide = nn.functional.gelu(self.intermediate["dense"](hidden))
            return self.output["LayerNorm"](hidden + self.output["dense"](wide))
        if self.kind == "code":
            hidden = self.layer_norm_1(hidden + x)
            up, gate = self.mlp["up_gated_layer"](hidden).chunk(2, -1)
            return self.layer_norm_2(hidden + self.mlp["down_layer"](nn.functional.gelu(gate) * up))
        gate, up = self.mlp["gated_layers"](hidden).chunk(2, -1)
        return self.mlp["layernorm"](hidden + self.mlp["wo"](nn.functional.gelu(gate) * up))


def alibi_slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes like its authors (github.com/ofirpress/attention_with_linear_biases)."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


class Jina(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(SIZES["vocab_size"], HIDDEN),
            "token_type_embeddings": nn.Embedding(2, HIDDEN),
            "LayerNorm": nn.LayerNorm(HIDDEN),
        })  # fmt: skip
        layers = [_Layer(kind) for _ in range(SIZES["num_hidden_layers"])]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(HIDDEN, HIDDEN)})  # used by rerankers
        for norm in (each for each in self.modules() if isinstance(each, nn.LayerNorm)):
            norm.eps = 1e-12
        self.config = SimpleNamespace(
            **SIZES | {"hidden_size": HIDDEN, "num_attention_heads": HEADS}, layer_norm_eps=1e-12,
            position_embedding_type="alibi", type_vocab_size=2,
            feed_forward_type="original" if kind == "plain" else "geglu",
        )  # fmt: skip

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        tables = self.embeddings
        hidden = tables["word_embeddings"](ids[0]) + tables["token_type_embeddings"].weight[0]
        hidden = tables["LayerNorm"](hidden)
        for layer in self.encoder["layer"]:
            hidden = layer(hidden)
        return SimpleNamespace(last_hidden_state=hidden[None])


class JinaRanker(nn.Module):
    """Reranker: the pooler, tanh and a linear turn the first token into a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.classifier = Jina("gated"), nn.Linear(HIDDEN, 1)
        self.config = SimpleNamespace(**vars(self.bert.config), id2label={"0": "LABEL_0"})

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        first = self.bert(ids).last_hidden_state[:, 0]
        return SimpleNamespace(logits=self.classifier(self.bert.pooler["dense"](first).tanh()))


@dataclass(frozen=True)
class TinyJinaBertV2(TinyEncoder):
    """Tiny Jina model; `kind` of the feed-forward half is "gated", "plain" or "code".

    `layout` is another converter's: gates and ups "apart" or "joined".
    """

    kind: str = "gated"
    layout: str = ""

    def build(self) -> Any:
        torch.default_generator.manual_seed(self.seed)
        return randomised(Jina(self.kind).float().eval())

    def save(self, folder: Path, model: Any) -> Path:
        return save_jina2(folder, model)

    def change(self, found: Contents) -> None:
        for layer in range(SIZES["num_hidden_layers"] if self.layout else 0):
            gate, up = (f"blk.{layer}.ffn_{half}.weight" for half in ("gate", "up"))
            if self.layout == "apart":
                found.tensors[gate], found.tensors[up] = np.split(found.tensors[up], 2)
            else:
                found.tensors[up] = np.concatenate([found.tensors[up], found.tensors.pop(gate)])
