"""The constraint of one answer: its grammar, which applies after the thinking."""

from __future__ import annotations

import math
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from puna.errors import FormatError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

    from puna.tokenizer import Tokenizer


#: Texts that models may write once between thinking and answer. They are not part of the answer.
_GAPS = ("\n", "\n\n")


class _Phase(Enum):
    OPENING = auto()  # the opening tag of thinking, or directly the answer
    THINKING = auto()
    GAP = auto()  # right after the closing tag
    ANSWER = auto()


class Thinking:
    """The boundaries of a model's thinking, in tokens."""

    def __init__(self, opening: LLMatcher | None, closing: str, tokenizer: Tokenizer, size: int) -> None:
        """Match the tag with `opening`, None if the prompt ends in it; masks have `size` words."""
        self.opening = opening
        self.closing = closing.encode()
        self._tokenizer = tokenizer
        self._size = size

    @cached_property
    def inside(self) -> NDArray[np.int32]:
        """Mask of every token but the end, because an answer must follow."""
        return ~mask_of(self._tokenizer.eos_ids, self._size)

    @cached_property
    def gaps(self) -> frozenset[int]:
        """Tokens that may come between the closing tag and the answer."""
        found = (self._tokenizer.encode(gap, add_special=False, first=False) for gap in _GAPS)
        return frozenset(ids[0] for ids in found if len(ids) == 1)


class Constraint:
    """Follower of one answer's tokens, which says which may come next."""

    def __init__(
        self, matcher: LLMatcher, vocabulary: LLTokenizer, tokenizer: Tokenizer, thinking: Thinking | None
    ) -> None:
        self.matcher = matcher
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self.words = words(vocabulary.vocab_size)
        self._thinking = thinking
        self._phase = _Phase.ANSWER
        if thinking is not None:
            self._phase = _Phase.OPENING if thinking.opening is not None else _Phase.THINKING
        self._begun = False  # part of the opening tag has come
        self._tail = b""  # end of the thinking, where the closing tag may have begun
        self._rejected: list[int] = []

    @property
    def answering(self) -> bool:
        """Whether the next token belongs to the answer, so that `matcher` alone decides."""
        return self._phase is _Phase.ANSWER

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, and nothing can follow."""
        return self.answering and self.matcher.is_stopped()

    def forced(self) -> list[int]:
        """Return the tokens that are certain to come next."""
        if not self.answering or self.matcher.is_stopped():
            return []
        return self.matcher.compute_ff_tokens()

    def after(self, drafts: list[int]) -> list[NDArray[np.int32]]:
        """Return the masks after each of `drafts`, up to the first one that is not allowed."""
        rows = []
        for token in drafts if self.answering else []:
            if not self.matcher.try_consume_tokens([token]):
                break
            rows.append(self._of(self.matcher))
            if self.matcher.is_stopped():
                break
        self.matcher.rollback(len(rows))
        return rows

    def allowed(self) -> NDArray[np.int32]:
        """Return the tokens that may come next: bit i of word w is for token 32 w + i.

        Raises `FormatError` if following the grammar exceeds a limit.
        """
        mask = self._mask()
        if self._rejected:
            mask = mask & ~mask_of(self._rejected, self.words)
        return mask

    def accept(self, token: int, instead: int | None = None) -> bool:
        """Follow `token`. Return False if it cannot stand: it is not among the `allowed` from then on.

        If `instead` is given, follow that one where `token` could stand. Raises `FormatError` if it cannot.
        """
        if instead is not None and self._could_stand(token):
            if not self._follow(instead):
                raise FormatError(f"the answer cannot be repeated: its format rules out token {instead}")
        elif not self._follow(token):
            self._rejected.append(token)
            return False
        self._rejected.clear()
        return True

    def _mask(self) -> NDArray[np.int32]:
        thinking = self._thinking
        match self._phase:
            case _Phase.ANSWER:
                return self._of(self.matcher)
            case _Phase.OPENING:
                assert thinking is not None
                assert thinking.opening is not None
                mask = self._of(thinking.opening)
                return mask if self._begun else np.bitwise_or(mask, self._of(self.matcher))
            case _Phase.THINKING:
                assert thinking is not None
                return thinking.inside
            case _Phase.GAP:
                assert thinking is not None
                return np.bitwise_or(self._of(self.matcher), mask_of(thinking.gaps, self.words))

    def _follow(self, token: int) -> bool:
        thinking = self._thinking
        match self._phase:
            case _Phase.OPENING:
                assert thinking is not None
                assert thinking.opening is not None
                if thinking.opening.try_consume_tokens([token]):
                    self._begun = True
                    if thinking.opening.is_stopped():
                        self._phase = _Phase.THINKING
                    return True
                self._phase = _Phase.ANSWER
            case _Phase.THINKING:
                assert thinking is not None
                return self._think(thinking, self._tail + self._tokenizer.piece(token))
            case _Phase.GAP:
                assert thinking is not None
                self._phase = _Phase.ANSWER
                if token in thinking.gaps:
                    return True
        if not self.matcher.consume_token(token):
            self._check()
        return True

    def _could_stand(self, token: int) -> bool:
        """Whether `_follow` would be True for an allowed token."""
        if self._phase is not _Phase.THINKING or self._thinking is None:
            return True
        _, _, rest = (self._tail + self._tokenizer.piece(token)).partition(self._thinking.closing)
        return self._beginning(rest) is not None

    def _think(self, thinking: Thinking, text: bytes) -> bool:
        """Follow thinking that ends in `text`; return False if `text` also begins an invalid answer."""
        before, found, rest = text.partition(thinking.closing)
        if not found:
            self._tail = before[max(len(before) - len(thinking.closing) + 1, 0) :]
            return True
        tokens = self._beginning(rest)
        if tokens is None:
            return False
        self.matcher.try_consume_tokens(tokens)
        self._phase = _Phase.ANSWER if rest else _Phase.GAP
        return True

    def _beginning(self, text: bytes) -> list[int] | None:
        """Return the tokens of an answer that begins with `text`; None if none can begin so."""
        begun = text.lstrip()
        tokens = self._vocabulary.tokenize_bytes(begun) if begun else []
        taken = self.matcher.try_consume_tokens(tokens)
        self.matcher.rollback(taken)
        return tokens if taken == len(tokens) else None

    def _of(self, matcher: LLMatcher) -> NDArray[np.int32]:
        mask = np.frombuffer(matcher.compute_bitmask(), np.int32)
        self._check()
        return mask[: self.words]

    def _check(self) -> None:
        if self.matcher.is_error():
            reason = " ".join(self.matcher.get_error().split())
            raise FormatError(f"the answer's format cannot be followed further: {reason}")


def words(size: int) -> int:
    """Return the number of words in a mask over `size` tokens."""
    return math.ceil(size / 32)


def mask_of(tokens: frozenset[int] | list[int], size: int) -> NDArray[np.int32]:
    """Return the mask of `tokens`, with `size` words."""
    mask = np.zeros(size, np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask.view(np.int32)
