"""Base of audio towers that project the states of Whisper's encoder."""

from __future__ import annotations

from puna.audio.mel import HOP, Features
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower
from puna.audio.whisper import WhisperEncoder, WhisperEncoderOptions
from puna.nn.module import part


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
