"""Prediction heads by the published formula, in torch, with the layers of transformers.

DeepSeek-AI, arXiv:2412.19437, section 2.2. All positions are computed at once, and nothing is cached.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.model.models.parity import original
from tests.tiny.heads import TinyHeads


class Reference:
    """Heads of a tiny model."""

    def __init__(self, tiny: TinyHeads) -> None:
        self.tiny = tiny
        self.model = original(tiny)
        self.text = getattr(self.model.model, "language_model", self.model.model)
        self.config = self.model.config.get_text_config()
        self.count = self.config.num_hidden_layers - tiny.heads

    def main(self, tokens: list[int]) -> torch.Tensor:
        """Return hidden states before the last norm: [tokens, hidden]."""
        found: list[torch.Tensor] = []
        hook = self.text.layers[self.count].register_forward_pre_hook(
            lambda _, args, kwargs: found.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
        with torch.inference_mode():
            self.text(torch.tensor([tokens]), use_cache=False)
        hook.remove()
        return found[0][0]

    def read(self, tokens: list[int]) -> torch.Tensor:
        """Return the first head's input for `tokens`: [tokens, hidden]."""
        states = self.main(tokens)
        if self.tiny.reads_normed:
            states = self.norm(states, self.text.norm.weight + self.tiny.decoder.norm_offset)
        return states.detach()

    def norm(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return x * torch.as_tensor(weight, dtype=torch.float32)

    def head(self, number: int, hidden: torch.Tensor, tokens: list[int], first: int) -> Any:
        """Return the next head's input, and logits, for `tokens` at positions from `first`.

        `hidden` is this head's input, for the position before each token.
        """
        layer, parts = self.count + number, self.tiny.parts(self.count + number)
        norm = self.text.norm.weight + self.tiny.decoder.norm_offset
        output = self.model.lm_head.weight
        with torch.inference_mode():
            table = torch.as_tensor(parts.get("nextn.embed_tokens", self.text.embed_tokens.weight))
            embedded = self.norm(table[tokens], parts["nextn.enorm"])
            joined = torch.cat([embedded, self.norm(hidden, parts["nextn.hnorm"])], dim=-1)
            joined = (joined @ torch.from_numpy(parts["nextn.eh_proj"]).T)[None]
            made = self.layer(layer, joined, first)[0]
            normed = self.norm(made, parts.get(self.tiny.norm, norm))
            logits = normed @ torch.as_tensor(parts.get("nextn.shared_head_head", output)).T
        return normed if self.tiny.reads_normed else made, logits

    def layer(self, number: int, x: torch.Tensor, first: int) -> torch.Tensor:
        count = x.shape[1]
        positions = torch.arange(first, first + count)[None]
        kind = getattr(self.config, "layer_types", None)
        ropes = (x, positions)
        if isinstance((self.config.rope_parameters or {}).get("full_attention"), dict):
            ropes = (*ropes, kind[number])
        ahead = torch.arange(count)[None] - torch.arange(count)[:, None]
        hidden = ahead > 0
        if kind and kind[number] == "sliding_attention":
            hidden |= ahead <= -self.config.sliding_window
        mask = torch.zeros(count, count).masked_fill(hidden, -torch.inf)[None, None]
        found = self.text.layers[number](
            x, attention_mask=mask, position_ids=positions, past_key_values=None,
            position_embeddings=self.text.rotary_emb(*ropes),
        )  # fmt: skip
        return found[0] if isinstance(found, tuple) else found

    def logits(self, tokens: list[int]) -> list[torch.Tensor]:
        """Return each head's logits after each token from the second, third, ... on."""
        states, found = self.read(tokens), []
        for number in range(self.tiny.heads):
            states, logits = self.head(number, states[:-1], tokens[number + 1 :], number + 1)
            found.append(logits)
        return found

    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """Return the likeliest tokens after `tokens`: each head's, then the last head's repeatedly."""
        hidden, found = self.read(tokens[:-1]), list[int]()
        for depth in range(count):
            number = min(depth, self.tiny.heads - 1)
            made, logits = self.head(number, hidden, [*tokens[number + 1 :], *found], number + 1)
            found.append(int(logits[-1].argmax()))
            hidden = made if depth + 1 < self.tiny.heads else torch.cat([hidden, made[-1:]])
        return found
