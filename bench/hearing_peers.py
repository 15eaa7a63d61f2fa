"""Engines that hear, with the same calls: Puna, whisper.cpp, and faster-whisper's engine CTranslate2."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from hearing_models import SizedWhisper
from numpy.typing import NDArray

from puna.audio.mel import Features
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower
from puna.batch import Image, ImagePart, Input
from puna.engine.engine import Engine
from puna.engine.requests import FittedPrompt
from puna.engine.room import EngineSizes
from puna.model.load import LoadSettings, load_model
from puna.ops import default_backend
from puna.options import Options
from puna.protocol import Done, Event, Failed, Generate

#: Rows of a slice of our towers: those of the engine's batches.
SLICE_ROWS = 512

Samples = NDArray[np.float32]


def _result(slices: Any) -> Any:
    """Run a computation in slices to its end."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value


class PunaWhisper:
    def __init__(self, path: Path, config: SizedWhisper, threads: int) -> None:
        ops = default_backend()
        ops.set_threads(threads)
        loaded = load_model(path, LoadSettings(context=config.context), ops=ops)
        self._engine = Engine(loaded, EngineSizes(context=config.context))
        assert loaded.speech_encoder is not None
        self._encoder, self._prompt, self._images = loaded.speech_encoder, config.prompt, 0

    def encode(self, samples: Samples) -> float:
        """Return the seconds of the encoder alone."""
        window = self._window(samples)
        begin = time.perf_counter()
        _result(self._encoder.encode(window, SLICE_ROWS))
        return time.perf_counter() - begin

    def transcribe(self, samples: Samples, count: int) -> float:
        """Return the seconds from samples to `count` tokens."""
        begin, ended = time.perf_counter(), list[Done]()

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Done):
                ended.append(event)

        self._images += 1
        image = Image(self._images, self._window(samples), self._encoder.options.positions)
        first = Input(self._prompt[0], image.digest, ImagePart(image, 0, image.rows))
        whole = FittedPrompt(self._prompt, inputs=[first, *map(Input, self._prompt[1:])])
        options = Options(temperature=0.0, num_predict=count)
        self._engine.submit(Generate(options=options, ignore_eos=True, cache_prompt=False), sink, whole)
        while not ended:
            self._engine.step()
        if ended[0].eval_count != count:
            raise RuntimeError(f"Puna generated {ended[0].eval_count} tokens")
        return time.perf_counter() - begin

    def close(self) -> None:
        self._engine.close()

    def _window(self, samples: Samples) -> NDArray[np.float32]:
        options = self._encoder.options
        return Features(Recording.of(samples), options.bands, options.frames).window(0)


class WhisperCpp:
    """whisper.cpp, which is given the tokens of the text: its bindings return no logits."""

    def __init__(self, path: Path, config: SizedWhisper, threads: int, flash: bool) -> None:
        import _pywhispercpp as whisper

        whisper.whisper_log_set(lambda level, text: None)
        settings = whisper.whisper_context_default_params()
        settings.use_gpu, settings.flash_attn = False, flash
        self._whisper, self._threads, self._prompt = whisper, threads, config.prompt
        self._context = whisper.whisper_init_from_file_with_params(str(path), settings)

    def encode(self, samples: Samples) -> float:
        self._hear(samples)
        begin = time.perf_counter()
        self._encode()
        return time.perf_counter() - begin

    def transcribe(self, samples: Samples, count: int) -> float:
        begin = time.perf_counter()
        self._hear(samples)
        self._encode()
        for place, token in enumerate([*self._prompt, *range(count - 1)]):
            status = self._whisper.whisper_decode(self._context, token, 1, place, self._threads)
            if status != 0:
                raise RuntimeError(f"whisper_decode failed with {status}")
        return time.perf_counter() - begin

    def close(self) -> None:
        self._whisper.whisper_free(self._context)

    def _hear(self, samples: Samples) -> None:
        self._whisper.whisper_pcm_to_mel(self._context, samples, len(samples), self._threads)

    def _encode(self) -> None:
        if (status := self._whisper.whisper_encode(self._context, 0, self._threads)) != 0:
            raise RuntimeError(f"whisper_encode failed with {status}")


class CTranslate2:
    """The engine of faster-whisper, with its spectrogram."""

    def __init__(self, folder: Path, config: SizedWhisper, threads: int, compute_type: str) -> None:
        import ctranslate2
        from faster_whisper.feature_extractor import FeatureExtractor

        self._model = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type=compute_type, intra_threads=threads
        )
        self._view, self._features = ctranslate2.StorageView.from_array, FeatureExtractor(config.bands)
        self._prompt, self._end, self._frames = config.prompt, config.id_of("endoftext"), 2 * config.positions

    def encode(self, samples: Samples) -> float:
        window = self._window(samples)
        begin = time.perf_counter()
        self._model.encode(window)
        return time.perf_counter() - begin

    def transcribe(self, samples: Samples, count: int) -> float:
        begin = time.perf_counter()
        states = self._model.encode(self._window(samples))
        found = self._model.generate(
            states, [self._prompt], beam_size=1, max_length=2 * count,  # half of it is for tokens
            suppress_blank=False, suppress_tokens=[self._end],
        )  # fmt: skip
        if (made := len(found[0].sequences_ids[0])) != count:
            raise RuntimeError(f"CTranslate2 generated {made} tokens")
        return time.perf_counter() - begin

    def close(self) -> None:
        self._model.unload_model()

    def _window(self, samples: Samples) -> Any:
        found = self._features(samples)[None, :, : self._frames]
        return self._view(np.ascontiguousarray(found, np.float32))


class PunaTower:
    def __init__(self, text: Path, tower: Path, threads: int) -> None:
        ops = default_backend()
        ops.set_threads(threads)
        loaded = load_model(text, LoadSettings(context=2048), projector=tower, ops=ops)
        assert loaded.audio is not None
        self._tower: AudioTower = loaded.audio
        self.rows = 0

    def encode(self, samples: Samples) -> float:
        """Return the seconds from the windows of a recording to its rows."""
        windows = self._tower.prepare(Recording.of(samples))
        self.rows = sum(window.rows for window in windows)
        begin = time.perf_counter()
        for window in windows:
            _result(self._tower.encode(window, SLICE_ROWS))
        return time.perf_counter() - begin

    def close(self) -> None:
        self._tower.keys.release()
