"""Transcription of recordings, a window at a time, as Whisper's reference does it (`whisper/transcribe.py`).

Each window is read with the text before it as a prompt, and again at higher temperatures if its text repeats
itself or is unlikely. The next window begins at the last timestamp, where a segment ended.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from puna.audio.alignment import token_ends
from puna.audio.languages import LANGUAGES, language_code
from puna.audio.mel import FRAME_RATE, HOP, Features
from puna.audio.recording import Recording
from puna.audio.whisper import WhisperEncoder
from puna.audio.words import words_of
from puna.batch import Image, ImagePart, Input
from puna.engine.engine import Engine
from puna.engine.requests import FittedPrompt, check_size, text_size
from puna.engine.sequence import Sink
from puna.errors import OutOfMemoryError, PunaError, RequestError, RunnerError, UnavailableError, shown
from puna.machine import is_out_of_memory
from puna.nn.observation import AttentionObservation
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Failed, Generate, Heard, Segment, Transcribe, Transcribed, Word
from puna.sample.transcript import TIMESTAMP_S, OneOf, TokenRules, TranscriptRules, TranscriptTokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger("puna.conversation")

#: Temperatures at which a window is read until its text looks right, if the request's is 0.
_TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: A text that zlib compresses more than this repeats itself.
_MOST_COMPRESSION: Final = 2.4
#: The mean log-probability below which a text looks wrong.
_LEAST_LOGPROB: Final = -1.0
#: The probability of no speech above which a window whose text looks wrong is silent.
_SILENT: Final = 0.6
#: Text drawn at a higher temperature than this does not prompt later windows.
_TRUSTED: Final = 0.5
#: Frames of a state of the encoder, and so between timestamps.
_STATE_FRAMES: Final = 2


@dataclass(frozen=True)
class _Answer:
    """The text of a window: its tokens without the end, and how likely it looks."""

    prompt: list[int]
    tokens: list[int]
    text: str
    temperature: float
    logprob: float  # mean of the tokens
    compression: float

    @property
    def looks_wrong(self) -> bool:
        return self.compression > _MOST_COMPRESSION or self.logprob < _LEAST_LOGPROB


def failure(request_id: int, error: Exception) -> Failed:
    """Return the event that tells of an error in preparing a request."""
    if isinstance(error, PunaError):
        return Failed.of(request_id, error)
    log.error("a request could not be prepared", exc_info=error)
    if is_out_of_memory(error):
        return Failed.of(request_id, OutOfMemoryError())
    reason = f"internal error in the model runner: {type(error).__name__}: {error}"
    return Failed.of(request_id, RunnerError(reason))


class Transcriber:
    """Transcribes recordings with the model of an engine. Safe to share between threads."""

    def __init__(self, engine: Engine, tower: WhisperEncoder) -> None:
        """Raise `ModelError` if the vocabulary lacks the tokens of transcripts."""
        self.engine = engine
        self.tower = tower.options
        self.tokens = TranscriptTokens.of(engine.loaded.tokenizer)

    def begin(self, request: Transcribe, sink: Sink) -> Transcription:
        """Return the work on a request.

        Raises `RequestError`, `AudioError`, `ContextLengthError`, and `UnavailableError` for times of words
        that the model does not give.
        """
        recording = Recording.of_data(request.samples)
        language = language_code(request.language) if request.language else ""
        if language is None:
            raise RequestError(
                f"the language {shown(request.language)} is unknown: give the code or the English name of "
                "one, as 'de' or 'german', or none to have it detected"
            )
        if not self.tower.multilingual:
            if request.translate or language not in ("", "en"):
                raise RequestError("this model knows no language but English")
            language = "en"
        elif language and language not in self.tokens.languages:
            raise RequestError(f"this model does not know the language {LANGUAGES[language]}")
        if not 0 <= request.temperature <= 1:
            raise RequestError(f"the temperature is {request.temperature:g}, and must be from 0 to 1")
        if request.word_timestamps and not self.tower.alignment_heads:
            name = self.engine.loaded.path.name
            raise UnavailableError(f"{name} has no heads that follow the speech, which give times of words")
        return Transcription(self, request, recording, language, sink)

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Return the tokens of a text that could precede a recording. Raises `ContextLengthError`."""
        tokenizer = self.engine.loaded.tokenizer
        check_size(text_size(prompt), tokenizer, self.engine.context)
        text = prompt.strip()
        return tokenizer.encode(f" {text}", add_special=False, parse_special=False) if text else []

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without timestamps and other special tokens."""
        return self.engine.loaded.tokenizer.decode(token for token in tokens if token < self.tokens.end)


class Transcription:
    """A request that is being transcribed, window by window (`puna.turns.WorkInParts`)."""

    def __init__(
        self, transcriber: Transcriber, request: Transcribe, recording: Recording, language: str, sink: Sink
    ) -> None:
        self._request = request
        self._sink = sink
        self._transcriber = transcriber
        self._engine = transcriber.engine
        self._tokens = transcriber.tokens
        self._tower = transcriber.tower
        self._recording = recording
        self._frames = max(len(recording.samples) // HOP, 1)
        self._features: Features | None = None
        self._language = language
        self._told_language = False
        self._seek = 0  # the window's first frame
        self._before = transcriber.prompt_tokens(request.prompt)  # text that precedes the window
        self._segments = 0
        self._arrived: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._prompt_count = self._answer_count = 0
        self._began_ns = 0

    @property
    def done(self) -> bool:
        return self._seek >= self._frames

    def advance(self) -> None:
        """Transcribe one window. Raises the engine's errors, and `RunnerError` after `stop`."""
        if self._features is None:
            self._began_ns = time.monotonic_ns()
            self._features = Features(self._recording, self._tower.bands, self._tower.frames)
        image = self._heard(self._features.window(self._seek))
        self._language = self._language or self._detected(image)
        if not self._told_language:
            self._told_language = True
            self._tell_progress()
        length = min(self._tower.frames, self._frames - self._seek)
        silence, answer = self._read(image)
        if silence > _SILENT and answer.logprob <= _LEAST_LOGPROB:
            self._seek += length
        else:
            self._take(answer, silence, length, self._token_ends(image, answer, length))
        self._tell_progress()

    def finish(self) -> None:
        self._sink(
            Transcribed(
                id=self._request.id,
                language=self._language,
                total_s=self._recording.seconds,
                prompt_eval_count=self._prompt_count,
                eval_count=self._answer_count,
                duration=time.monotonic_ns() - self._began_ns,
            )
        )

    def fail(self, error: Exception) -> None:
        self._sink(failure(self._request.id, error))

    def stop(self) -> None:
        self._engine.cancel(self._request.id)
        self._arrived.put(None)

    def _tell_progress(self) -> None:
        total_s = self._recording.seconds
        done_s = min(self._seek / FRAME_RATE, total_s)
        self._sink(Heard(id=self._request.id, language=self._language, done_s=done_s, total_s=total_s))

    # --- reading a window ---

    def _heard(self, window: NDArray[np.float32]) -> Image:
        digest = hashlib.blake2b(window.tobytes(), digest_size=8).digest()
        return Image(int.from_bytes(digest, "big") or 1, window, self._tower.positions)

    def _detected(self, image: Image) -> str:
        """Return the likeliest language of a window."""
        languages = self._tokens.languages
        rule = OneOf([*languages.values()])
        self._ask(image, [self._tokens.start], rule, 1)
        return max(zip(rule.probabilities, languages, strict=True))[1]

    def _read(self, image: Image) -> tuple[float, _Answer]:
        """Return the probability that a window has no speech, and its text."""
        before = self._before[-(self._engine.context // 2 - 1) :]
        prompt = [*([self._tokens.previous, *before] if before else []), self._tokens.start]
        rule = OneOf([self._tokens.no_speech])
        self._ask(image, prompt, rule, 1)
        silence = float(rule.probabilities[0])
        if self._tower.multilingual:
            task = self._tokens.translate if self._request.translate else self._tokens.transcribe
            prompt += [self._tokens.languages[self._language], task]
        temperature = self._request.temperature
        for each in (temperature,) if temperature else _TEMPERATURES:
            answer = self._answer(image, prompt, each)
            silent = silence > _SILENT and answer.logprob < _LEAST_LOGPROB
            if silent or not answer.looks_wrong:
                break
        self._prompt_count += len(prompt)
        return silence, answer

    def _answer(self, image: Image, prompt: list[int], temperature: float) -> _Answer:
        rules = TranscriptRules(self._tokens)
        tokens = self._ask(image, prompt, rules, self._engine.context // 2, temperature)
        self._answer_count += len(tokens)
        text = self._transcriber.text(tokens).strip()
        data = text.encode()
        compression = len(data) / len(zlib.compress(data))
        return _Answer(prompt, tokens, text, temperature, rules.average, compression)

    def _token_ends(self, image: Image, answer: _Answer, length: int) -> list[float]:
        """Return when each token of an answer ends, in seconds of its window; [] if that is not asked for."""
        if not self._request.word_timestamps or not answer.tokens:
            return []
        begin = len(answer.prompt)
        text = [*answer.prompt, *answer.tokens][: self._engine.context]
        observation = AttentionObservation(self._tower.alignment_heads, begin, len(text) - begin)
        self._run(image, text, Options(), observation=observation)
        weights = (head.weights() for head in observation.found())
        states = max(length // _STATE_FRAMES, 1)  # of the recording
        ends = [round(state * TIMESTAMP_S, 2) for state in token_ends(weights, states).tolist()]
        return ends + ends[-1:] * (len(answer.tokens) - len(ends))

    def _ask(
        self, image: Image, prompt: list[int], rules: TokenRules, limit: int, temperature: float = 0.0
    ) -> list[int]:
        """Return at most `limit` tokens that follow `prompt`, without the end."""
        seed = self._request.seed if self._request.seed < 0 else self._request.seed + self._seek
        options = Options(temperature=temperature, seed=seed, top_k=0, top_p=1.0, num_predict=limit)
        return self._run(image, prompt, options, rules=rules)

    def _run(self, image: Image, prompt: list[int], options: Options, **fitted: Any) -> list[int]:
        """Return the tokens that the engine gives for a prompt with more fields `fitted`."""
        request = Generate(
            id=self._request.id,
            options=options,
            shift=False,
            truncate=False,
            priority=self._request.priority,
            client=self._request.client,
        )
        first = Input(prompt[0], image.digest, ImagePart(image, 0, image.rows))
        whole = FittedPrompt(prompt, inputs=[first, *map(Input, prompt[1:])], **fitted)
        self._engine.submit(request, self._arrived.put, whole)
        tokens: list[int] = []
        while True:
            match self._arrived.get():
                case Chunk(tokens=more):
                    tokens += more
                case Done():
                    return tokens
                case Failed(kind=kind, message=message):
                    raise PunaError.of_kind(kind, message)
                case None:
                    raise RunnerError("the transcription was stopped")

    # --- the text of a window ---

    def _take(self, answer: _Answer, silence: float, length: int, token_ends: list[float]) -> None:
        """Send the segments of a window of `length` frames, and move to the next window."""
        tokens, begin_time = answer.tokens, self._tokens.begin_time
        at_time = [token >= begin_time for token in tokens]
        single_end = at_time[-2:] == [False, True]
        ends = [i for i in range(1, len(tokens)) if at_time[i - 1] and at_time[i]]
        said: list[int] = []
        if ends:
            ends += [len(tokens)] * single_end
            for begin, end in pairwise([0, *ends]):
                part = tokens[begin:end]
                times = part[0] - begin_time, part[-1] - begin_time
                said += self._tell(answer, silence, part, times, self._words(part, begin, token_ends))
            last = tokens[ends[-1] - 1] - begin_time
            # Nobody speaks after a timestamp that is not the begin of another segment.
            moved = length if single_end else min(last * _STATE_FRAMES, length)
        else:
            places = [token - begin_time for token in tokens if token >= begin_time]
            last = places[-1] if places and places[-1] else length // _STATE_FRAMES
            said += self._tell(answer, silence, tokens, (0, last), self._words(tokens, 0, token_ends))
            moved = length
        self._before = [] if answer.temperature > _TRUSTED else [*self._before, *said]
        self._before = self._before[-self._engine.context :]
        self._seek += moved or length

    def _words(self, tokens: list[int], begin: int, token_ends: list[float]) -> list[Word]:
        """Return the words of a segment, whose tokens are those of its window from `begin` on."""
        if not token_ends:
            return []
        spoken = [place for place, token in enumerate(tokens, begin) if token < self._tokens.end]
        piece = self._engine.loaded.tokenizer.piece
        language = "en" if self._request.translate else self._language
        found = words_of([piece(tokens[place - begin]) for place in spoken], language)
        # A token begins when the one before it ends, be that a timestamp.
        spans = [(spoken[word.begin] - 1, spoken[word.end - 1]) for word in found]
        seconds = [(token_ends[first] if first >= 0 else 0.0, token_ends[last]) for first, last in spans]
        return [
            Word(word.text, self._time(start_s), self._time(end_s))
            for word, (start_s, end_s) in zip(found, seconds, strict=True)
        ]

    def _time(self, window_s: float) -> float:
        """Return the time in the recording of one in the window, in seconds."""
        return round(self._seek / FRAME_RATE + window_s, 2)

    def _tell(
        self, answer: _Answer, silence: float, tokens: list[int], times: tuple[int, int], words: list[Word]
    ) -> list[int]:
        """Send a segment between two timestamps; return its tokens if it has text."""
        text = self._transcriber.text(tokens)
        total_s = self._recording.seconds
        begin, end = times
        start_s, end_s = (self._time(place * TIMESTAMP_S) for place in times)
        # Nothing is said after the recording, in the silence that completes its last window.
        if begin == end or start_s >= total_s or not text.strip():
            return []
        self._sink(
            Segment(
                id=self._request.id,
                number=self._segments,
                start_s=start_s,
                end_s=min(end_s, total_s),
                text=text,
                tokens=tokens,
                seek=self._seek,
                temperature=answer.temperature,
                avg_logprob=answer.logprob,
                compression_ratio=answer.compression,
                no_speech_prob=silence,
                words=words,
            )
        )
        self._segments += 1
        return tokens
