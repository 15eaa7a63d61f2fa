"""Audio tower of Ultravox: Whisper's encoder up to the end of the recording, and a gated projector.

Reference: `ultravox_model.py` and `ultravox_processing.py` of Fixie's models from version 0.5 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.audio.mel import HOP, Features
from puna.audio.recording import Recording
from puna.audio.tower import AudioWindow
from puna.audio.towers.whisper import JoiningOptions, WhisperTower
from puna.errors import ModelError
from puna.gguf.metadata import table_rows
from puna.nn.layers import Linear, RMSNorm, StackedLinear
from puna.nn.module import Module, part, weight
from puna.ops import Array
from puna.vision.layers.attention import Slices

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: States of a row if a file does not say.
_STATES: Final = 8
#: The epsilon of the projector's norms, which no key carries.
_EPS: Final = 1e-6
#: Silence completes shorter recordings, whose reflections would be too short.
_LEAST_SAMPLES: Final = 2 * HOP


@dataclass(frozen=True, kw_only=True)
class UltravoxProjectorOptions:
    joined_size: int
    inner_size: int  # after the gates
    text_size: int
    norm_eps: float = _EPS


@dataclass(frozen=True, kw_only=True)
class UltravoxOptions(JoiningOptions):
    inner_size: int

    @property
    def projector(self) -> UltravoxProjectorOptions:
        return UltravoxProjectorOptions(
            joined_size=self.joined_size, inner_size=self.inner_size, text_size=self.text_size
        )


class UltravoxProjector(Module):
    """Norm, gated linear whose second half is the gate, norm, linear."""

    options: UltravoxProjectorOptions
    first_norm: RMSNorm = weight("norm_pre", "joined_size")
    gated: StackedLinear = weight("mlp.1", "inner_size", "inner_size", "joined_size")
    second_norm: RMSNorm = weight("norm_mid", "inner_size")
    output: Linear = weight("mlp.2", "text_size", "inner_size")

    def forward(self, states: Array) -> Array:
        """Map [rows, joined_size] to [rows, text_size]."""
        values, gate = self.gated(self.first_norm(states))
        return self.output(self.second_norm(self.ops.swiglu(gate, values)))


class UltravoxAudio(WhisperTower):
    options: UltravoxOptions
    projector: UltravoxProjector = part("mm.a", options="projector")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> UltravoxOptions:
        rows = table_rows(file, "mm.a.mlp.1.weight")
        if rows % 2:
            raise ModelError(
                f"{file.path}: tensor 'mm.a.mlp.1.weight' has {rows} rows, and values and gates need an even "
                "number"
            )
        return UltravoxOptions.of_stack(file, text_size, _STATES, inner_size=rows // 2)

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        o = self.options
        least = max(-(-len(recording.samples) // HOP) * HOP, _LEAST_SAMPLES)
        features = Features(recording, o.bands, o.frames, least=least)
        return [
            AudioWindow(features, begin, -(-self._states(features, begin) // o.joined))
            for begin in range(0, features.all_frames, o.frames)
        ]

    def _frames(self, features: Features, begin: int) -> int:
        """Return the frames of the window from frame `begin` on."""
        return min(features.all_frames - begin, self.options.frames)

    def _states(self, features: Features, begin: int) -> int:
        return (self._frames(features, begin) + 1) // 2

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        o, ops, features = self.options, self.ops, window.features
        frames = features.window(window.begin)[: self._frames(features, window.begin)]
        count = self._states(features, window.begin)
        states = yield from self.encoder.states(frames, count, slice_rows)
        found = [self.encoder.last_norm(states)]
        if missing := window.rows * o.joined - count:
            found.append(ops.array(np.zeros((missing, o.hidden_size), np.float32)))
        return self.projector.forward(ops.concatenate(found).reshape(window.rows, o.joined_size))
