"""Rules of transcripts: which tokens may follow each other in what Whisper writes.

They are those of its reference, `whisper/decoding.py` (Radford et al., arXiv:2212.04356, section 4.5).
Segments begin and end with timestamps, which never decrease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from puna.audio.languages import LANGUAGES
from puna.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.tokenizer import Tokenizer

#: Seconds between two timestamps.
TIMESTAMP_S: Final = 0.02
#: The largest number of the first timestamp: speech that begins later begins in another window.
_LATEST_BEGIN: Final = 50

#: Symbols that speakers do not say, and notes, which stand for music.
_SYMBOLS: Final = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]",
    "{{", "}}", "♪♪", "♪♪♪",
)  # fmt: skip
_NOTES: Final = "♩♪♫♬♭♮♯"


class TokenRules(Protocol):
    """Rules that decide between tokens by their logits and by the tokens before."""

    def limit(self, logits: NDArray[np.float32]) -> None:
        """Set the logits [vocab] of tokens that must not follow to -infinity."""

    def accept(self, token: int) -> None:
        """Add the token that was drawn after the last `limit`."""


@dataclass(frozen=True)
class TranscriptTokens:
    """Special tokens of a vocabulary for transcripts; the last ones are timestamps, from `begin_time` on."""

    end: int
    start: int
    previous: int  # before the text that precedes the window
    transcribe: int
    translate: int
    no_speech: int
    no_timestamps: int
    begin_time: int
    languages: Mapping[str, int]  # by code
    unsaid: tuple[int, ...]  # tokens that a transcript never has

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Look up the tokens. Raises `ModelError` for one that the vocabulary lacks."""

        def named(*spellings: str) -> int:
            for spelling in spellings:
                if (found := tokenizer.id_of(f"<|{spelling}|>")) is not None:
                    return found
            raise ModelError(f"the vocabulary has no token <|{spellings[0]}|>, which transcripts need")

        def encoded(text: str) -> list[int]:
            return tokenizer.encode(text, add_special=False, parse_special=False)

        unsaid: set[int] = set()
        for symbol in (*_SYMBOLS, *_NOTES):
            for tokens in (encoded(symbol), encoded(f" {symbol}")):
                if len(tokens) == 1 or symbol in _NOTES:
                    unsaid.add(tokens[0])
        # Within words only; and a space is said, also where a vocabulary has it as a token of its own.
        unsaid |= {tokens[0] for tokens in (encoded(" -"), encoded(" '")) if len(tokens) == 1}
        unsaid -= set(encoded(" "))
        start, previous = named("startoftranscript"), named("startofprev")
        tasks = named("transcribe"), named("translate")
        no_speech, no_timestamps = named("nospeech", "nocaptions"), named("notimestamps")
        unsaid |= {start, previous, *tasks, no_speech}
        if (other := tokenizer.id_of("<|startoflm|>")) is not None:
            unsaid.add(other)
        found = {code: tokenizer.id_of(f"<|{code}|>") for code in LANGUAGES}
        return cls(
            end=named("endoftext"),
            start=start,
            previous=previous,
            transcribe=tasks[0],
            translate=tasks[1],
            no_speech=no_speech,
            no_timestamps=no_timestamps,
            begin_time=no_timestamps + 1,  # not all vocabularies spell timestamps
            languages={code: id for code, id in found.items() if id is not None},
            unsaid=tuple(sorted(unsaid)),
        )


class OneOf:
    """Draws one of `tokens`, and keeps the probabilities that they had among all tokens: float64 [tokens]."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.array(tokens, np.int64)
        self.probabilities = np.zeros(len(tokens))

    def limit(self, logits: NDArray[np.float32]) -> None:
        self.probabilities = np.exp(_log_softmax(logits)[self._tokens])
        kept = logits[self._tokens]
        logits[:] = -np.inf
        logits[self._tokens] = kept

    def accept(self, token: int) -> None:
        pass


class TranscriptRules:
    """The rules for the answer to one window, and the log-probability of the tokens so far.

    A token's probability is that among those which may follow.
    """

    def __init__(self, tokens: TranscriptTokens) -> None:
        self._tokens = tokens
        self._unsaid = np.array([*tokens.unsaid, tokens.no_timestamps], np.int64)
        self._answer: list[int] = []
        self._logarithms = np.empty(0)  # of the tokens that may follow
        self.log_probability = 0.0

    @property
    def average(self) -> float:
        """The mean log-probability, as if one more token followed an answer that is not at its end."""
        ended = self._answer[-1:] == [self._tokens.end]
        return self.log_probability / (len(self._answer) + (not ended))

    def limit(self, logits: NDArray[np.float32]) -> None:
        times, answer = self._tokens.begin_time, self._answer
        logits[self._unsaid] = -np.inf
        if not answer:
            logits[:times] = -np.inf
            logits[times + _LATEST_BEGIN + 1 :] = -np.inf
        else:
            self._limit_times(logits)
        found = _log_softmax(logits)
        if np.logaddexp.reduce(found[times:]) > found[:times].max():
            logits[:times] = -np.inf
            found = _log_softmax(logits)
        self._logarithms = found

    def accept(self, token: int) -> None:
        self.log_probability += float(self._logarithms[token])
        self._answer.append(token)

    def _limit_times(self, logits: NDArray[np.float32]) -> None:
        """Let timestamps come in pairs, except at the begin, and never decrease."""
        times, answer = self._tokens.begin_time, self._answer
        at_time = answer[-1] >= times
        opened = at_time and (len(answer) < 2 or answer[-2] >= times)
        if opened:
            logits[times:] = -np.inf
        elif at_time:
            logits[: self._tokens.end] = -np.inf
        latest = max((token for token in answer if token >= times), default=None)
        if latest is not None:
            # A segment that has text takes some time.
            logits[times : latest + (not at_time or opened)] = -np.inf


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return found
