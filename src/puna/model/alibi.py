"""Decoders that tell attention positions by ALiBi alone (Press et al., arXiv:2108.12409)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from puna.gguf.metadata import invalid, positive, required
from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.distance import share_linear_bias
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Limit in tokens. The bias takes 1 MB per head at this length.
LONGEST: Final = 131_072


@dataclass(frozen=True, kw_only=True)
class AlibiOptions(TextOptions):
    reach: int  # longest text
    steepest: float  # exponent that the slopes are made from

    @classmethod
    def read_alibi(cls, file: GGUFFile) -> AlibiOptions:
        """Read the options of a model without rotation; see `TextOptions.read`."""
        return cls(
            **vars(TextOptions.read(file, TextDefaults(rotates=False))),
            reach=read_reach(file),
            steepest=positive(file, "attention.max_alibi_bias", 8.0),
        )


class AlibiDecoder(Decoder):
    """Decoder whose layers' attention is biased by distance."""

    options: AlibiOptions
    layers: Sequence[PreNormLayer]

    def loaded(self) -> None:
        super().loaded()
        mixers = [layer.mixer for layer in self.layers]
        share_linear_bias(mixers, self.options.reach, self.options.steepest)


def read_reach(file: GGUFFile) -> int:
    """Return the longest text that biases are made for. Raises `ModelError` if it is too long."""
    context = required(file, "context_length")
    if context > LONGEST:
        raise invalid(
            file, "context_length", f"is {context}, but texts of at most {LONGEST} tokens are supported"
        )
    return context
