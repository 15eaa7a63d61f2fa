"""Options of audio towers, read from a file's metadata and checked against its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from puna.errors import ModelError
from puna.gguf.metadata import invalid, positive, required, table_rows
from puna.vision.layers.layers import VisionLayerOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Bounds beyond which a file is damaged.
_MAX_BANDS: Final = 1 << 10
_MAX_POSITIONS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class AudioOptions:
    """Options common to all audio towers. Sizes are named as in `weight(...)`."""

    bands: int  # of the spectrogram
    hidden_size: int
    text_size: int  # values of a row for the text model
    norm_eps: float
    layers: tuple[VisionLayerOptions, ...]

    @classmethod
    def read(cls, file: GGUFFile, text_size: int, **more: Any) -> Self:
        """Read the options from the metadata of `file`; `more` are those of subclasses.

        Raises `ModelError` that names the key and its value.
        """
        hidden, heads = required(file, "audio.embedding_length"), required(file, "audio.attention.head_count")
        if hidden % heads:
            raise invalid(
                file, "audio.attention.head_count", f"is {heads}, which does not divide {hidden} values"
            )
        if (bands := required(file, "audio.num_mel_bins")) > _MAX_BANDS:
            raise invalid(file, "audio.num_mel_bins", f"is {bands}, and at most {_MAX_BANDS} make sense")
        layer = VisionLayerOptions(
            hidden_size=hidden,
            feed_forward_size=required(file, "audio.feed_forward_length"),
            heads=heads,
            norm_eps=positive(file, "audio.attention.layer_norm_epsilon", 1e-5),
        )
        return cls(
            bands=bands,
            hidden_size=hidden,
            text_size=text_size,
            norm_eps=layer.norm_eps,
            layers=(layer,) * required(file, "audio.block_count"),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class PlacedAudioOptions(AudioOptions):
    """Options of towers with a table of position vectors."""

    positions: int

    @classmethod
    def read(cls, file: GGUFFile, text_size: int, **more: Any) -> Self:
        positions = table_rows(file, "a.position_embd.weight")
        if not 0 < positions <= _MAX_POSITIONS:
            raise ModelError(f"{file.path}: tensor 'a.position_embd.weight' has {positions} rows")
        return super().read(file, text_size, positions=positions, **more)
