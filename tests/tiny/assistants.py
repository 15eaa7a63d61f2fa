"""Tiny random assistants of Gemma 4, which draft from the states and keys of a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.tiny.converted import Contents
from tests.tiny.decoders import SIZES
from tests.tiny.gemmas import WINDOW, TinyGemma4
from tests.tiny.llama import vocabulary

_FULL, _WINDOW = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class TinyTarget(TinyGemma4):
    """Gemma 4; if `agreeing`, its layers add little, so that it mostly repeats its last token."""

    agreeing: bool = False

    def change(self, found: Contents, model: Any) -> None:
        super().change(found, model)
        if self.agreeing:
            soften(found)


@dataclass(frozen=True)
class TinyAssistant(TinyGemma4):
    """Assistant of `target`; if `agreeing`, it repeats its last token, as the target does."""

    target: TinyTarget = field(default_factory=TinyTarget)
    windowed: tuple[bool, ...] = (True, True, False)
    spare: bool = False
    clusters: int = 0  # of the vocabulary; 0: none
    agreeing: bool = False

    def config(self) -> Any:
        from transformers import Gemma4AssistantConfig, Gemma4TextConfig

        theirs = self.target.config()
        heads = {"attention_k_eq_v": theirs.attention_k_eq_v}
        whole = theirs.per_layer_config[theirs.layer_types.index(_FULL)]
        if theirs.attention_k_eq_v:
            heads["num_global_key_value_heads"] = whole.num_key_value_heads
        text = Gemma4TextConfig(
            **{
                **self.sizes(), "hidden_size": SIZES["hidden_size"] if self.agreeing else 40,
                "intermediate_size": 56, "num_attention_heads": 6, "global_head_dim": whole.head_dim,
                "vocab_size_per_layer_input": 0, "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": len(self.windowed), **heads, **self.settings,
            }
        )  # fmt: skip
        ordered = {"use_ordered_embeddings": True, "num_centroids": self.clusters} if self.clusters else {}
        return Gemma4AssistantConfig(
            text_config=text,
            backbone_hidden_size=SIZES["hidden_size"],
            centroid_intermediate_top_k=5,
            **ordered,
        )

    def untrained(self) -> Any:
        from transformers import Gemma4AssistantForCausalLM, Gemma4TextConfig

        # transformers 5.23 looks for layers with keys even in a model that has none.
        modes = property(lambda config: ["reuse"] * config.num_hidden_layers)
        with mock.patch.object(Gemma4TextConfig, "kv_sharing_modes", modes):
            return Gemma4AssistantForCausalLM(self.config())

    def build(self) -> Any:
        model = super().build()
        if self.clusters:
            order = torch.randperm(len(vocabulary()))
            model.masked_embedding.token_ordering.copy_(order)
        return model

    def change(self, found: Contents, model: Any) -> None:
        super().change(found, model)
        if self.agreeing:
            soften(found)
            size = SIZES["hidden_size"]
            found.tensors["nextn.pre_projection.weight"] = np.eye(size, 2 * size, dtype=np.float32)
            found.tensors["token_embd.weight"] = self.target.contents(self.target.build()).tensors[
                "token_embd.weight"
            ]


def soften(found: Contents) -> None:
    """Make layers add little."""
    for name in found.tensors:
        if name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight", ".post_norm.weight")):
            found.tensors[name] = found.tensors[name] * 0.02


class AssistantReference:
    """transformers' assistant behind its target."""

    def __init__(self, target: Any, assistant: Any) -> None:
        self._target = target
        self._assistant = assistant
        kinds = target.config.layer_types
        own = len(kinds) - target.config.num_kv_shared_layers
        for kind in (_WINDOW, _FULL):
            last = max(layer for layer in range(own) if kinds[layer] == kind)
            # transformers stores nothing in models without shared keys, which its assistants could not use.
            target.model.layers[last].self_attn.store_full_length_kv = True

    @torch.no_grad()
    def draft(
        self, inputs: Sequence[int], tokens: Sequence[int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the logits [vocab] and states [hidden] of passes after `inputs`.

        The first pass reads the last of `inputs`, and each further one the next of `tokens`.
        """
        given = torch.tensor([inputs[:-1]])
        found = self._target(
            input_ids=given, output_hidden_states=True, return_shared_kv_states=True, use_cache=False
        )
        reached = {_WINDOW: WINDOW - 1, _FULL: len(inputs)}  # a window includes the position that reads
        shared = {
            kind: tuple(each[:, :, -reached[kind] :] for each in found.shared_kv_states[kind])
            for kind in reached
        }
        state, position = found.hidden_states[-1][:, -1:], torch.tensor([[len(inputs) - 1]])
        embed = self._target.get_input_embeddings()
        logits, states = [], []
        for token in (inputs[-1], *tokens):
            joined = torch.cat([embed(torch.tensor([[token]])), state], dim=-1)
            passed = self._assistant(
                inputs_embeds=joined, position_ids=position, shared_kv_states=shared, use_cache=False
            )
            state = passed.last_hidden_state
            logits.append(passed.logits[0, 0])
            states.append(state[0, 0])
        return logits, states
