"""Base of audio towers that project the states of Whisper's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from puna.audio.mel import HOP, Features
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower
from puna.audio.whisper import WhisperEncoder, WhisperEncoderOptions
from puna.gguf.metadata import required
from puna.nn.module import part

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class JoiningOptions(WhisperEncoderOptions):
    joined: int  # neighbouring states that become a row

    @property
    def joined_size(self) -> int:
        return self.joined * self.hidden_size

    @classmethod
    def of_stack(cls, file: GGUFFile, text_size: int, usual: int, **more: Any) -> Self:
        """Read the options; the states of a row are `usual` if the file does not say. Raises as `read`."""
        return cls.read(file, text_size, joined=required(file, "audio.projector.stack_factor", usual), **more)


class WhisperTower(AudioTower):
    """Audio tower around Whisper's encoder, which reads recordings in whole windows."""

    options: WhisperEncoderOptions
    encoder: WhisperEncoder = part()

    def loaded(self) -> None:
        self.keys = self.encoder.keys

    def whole_windows(self, recording: Recording) -> Features:
        """Return the features of a recording, which silence completes to whole windows."""
        length = self.options.frames * HOP
        count = -(-len(recording.samples) // length)
        return Features(recording, self.options.bands, self.options.frames, least=count * length)

    def memory_bytes(self, slice_rows: int) -> int:
        return WhisperEncoder(self.options, self.ops).memory_bytes(slice_rows)
