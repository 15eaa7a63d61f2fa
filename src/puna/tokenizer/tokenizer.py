"""A model's tokenizer: text to ids and back.

Added tokens are recognised first, by their spelling, and cut the text into pieces; a `TextEncoder` turns each
piece of ordinary text between them into ids.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from puna.errors import RequestError
from puna.tokenizer.special_ids import SpecialIds
from puna.tokenizer.vocabulary import Piece, TokenType, Vocabulary


class TextEncoder(Protocol):
    def encode(self, text: str, *, first: bool) -> list[int]:
        """Return the token ids of `text`, without recognising added tokens.

        `first` is whether `text` is at the start of the input or follows an added token.
        """
        ...


class WordCache:
    """A cache of the ids of short words, because text repeats its words.

    Safe to share between threads: each operation is a single dictionary access.
    """

    MAX_WORDS = 1 << 16
    MAX_LENGTH = 64  # longer words are rarely repeated

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}
        self.get = self._ids.get

    def put(self, word: str, ids: list[int]) -> None:
        if len(word) <= self.MAX_LENGTH:
            if len(self._ids) >= self.MAX_WORDS:
                self._ids.clear()
            self._ids[word] = ids


_WHITESPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Stripping:
    """Ids of the tokens that remove the whitespace to their left and to their right."""

    left: frozenset[int] = frozenset()
    right: frozenset[int] = frozenset()


class AddedTokens:
    """A splitter of text at the leftmost, longest occurrences of a set of tokens."""

    def __init__(self, ids: Mapping[str, int], stripping: Stripping = Stripping()) -> None:
        self._ids = dict(ids)
        self._stripping = stripping
        # The regular expression only finds tokens' first two characters, which skips nearly all text; at each
        # match the possible lengths are tried, longest first.
        by_start: dict[str, set[int]] = {}
        for text in self._ids:
            by_start.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in by_start.items()}
        starts = sorted(by_start, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, starts))) if starts else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield pieces of text (never empty) and token ids, in order."""
        if self._start is None:
            if text:
                yield text
            return
        begin = position = 0
        while match := self._start.search(text, position):
            at = match.start()
            found = self._longest(text, at)
            if found is None:
                position = at + 1
                continue
            id = self._ids[found]
            before = text[begin:at]
            if id in self._stripping.left:
                before = before.rstrip(_WHITESPACE)
            if before:
                yield before
            yield id
            begin = at + len(found)
            if id in self._stripping.right:
                while begin < len(text) and text[begin] in _WHITESPACE:
                    begin += 1
            position = begin
        if begin < len(text):
            yield text[begin:]

    def _longest(self, text: str, at: int) -> str | None:
        for start in (text[at : at + 2], text[at]):
            for length in self._lengths.get(start, ()):
                candidate = text[at : at + length]
                if candidate in self._ids:
                    return candidate
        return None


logger = logging.getLogger(__name__)


class Tokenizer:
    """A model's tokenizer, which turns text into token ids and back. Safe to share between threads.

    Created by `tokenizer_from_gguf`. `name` is the kind of vocabulary (`gpt2` for BPE, `llama` for
    SentencePiece's BPE, `t5` for its Unigram, `bert` for WordPiece, `rwkv` for RWKV's,
    `plamo2` for PLaMo's), `pre` the name of the file's pre-tokenizer.
    """

    def __init__(
        self,
        name: str,
        pre: str,
        vocabulary: Vocabulary,
        special: SpecialIds,
        encoder: TextEncoder,
        piece: Piece,
        *,
        drops_first_space: bool = False,
        stripping: Stripping = Stripping(),
    ) -> None:
        self.name = name
        self.pre = pre
        self.vocab_size = len(vocabulary)
        self.bos_id = special.bos
        self.eos_id = special.eos
        self.unknown_id = special.unknown
        self.eos_ids = special.ends
        self.add_bos = special.add_bos
        self.add_eos = special.add_eos
        self.gap = special.gap
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._spell = piece
        self._pieces: dict[int, bytes] = {}
        self._drops_first_space = drops_first_space
        self._warned = False
        self._added = {
            parse_special: AddedTokens(
                {text: id for id in vocabulary.of_type(*kinds) if (text := vocabulary.texts[id])}, stripping
            )
            for parse_special, kinds in (
                (True, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)),
                (False, (TokenType.USER_DEFINED,)),
            )
        }

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, first: bool = True
    ) -> list[int]:
        """Return the token ids of `text`.

        `add_special` adds the BOS and EOS tokens the model expects. `parse_special` recognises the spelling
        of control tokens, which otherwise is ordinary text; user-defined tokens are always recognised. Text
        that is not the `first` gets no space before it. A lone surrogate becomes U+FFFD.
        """
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        bos_added = bool(ids)
        for part in self._added[parse_special].split(_well_formed(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(part, first=first)
            first = isinstance(part, int)
        if bos_added and not self._warned and ids[1:2] == [self.bos_id]:
            self._warned = True  # a template would repeat the warning for every prompt
            logger.warning("a text starts with BOS, and the tokenizer adds another one")
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    @cached_property
    def longest_bytes(self) -> int:
        """The most bytes of text that any token stands for."""
        return max((len(text.encode(errors="surrogatepass")) for text in self._vocabulary.texts), default=1)

    def piece(self, id: int) -> bytes:
        """Return the bytes that token `id` adds to a text: for control tokens, their spelling.

        Raises RequestError if there is no such token.
        """
        known = self._pieces.get(id)
        if known is None:
            self.check([id])
            known = self._pieces[id] = self._spell(id)
        return known

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, without the space the tokenizer puts before every text.

        Bytes that are not UTF-8 become U+FFFD. Raises RequestError like `piece`.
        """
        text = b"".join(map(self.piece, ids))
        if self._drops_first_space:
            text = text.removeprefix(b" ")
        return text.decode(errors="replace")

    def token(self, id: int) -> str:
        """Return the spelling of token `id` in the vocabulary.

        Raises RequestError if there is no such token.
        """
        self.check([id])
        return self._vocabulary.texts[id]

    def id_of(self, text: str) -> int | None:
        """Return the id of the token spelled `text`, whatever its type, or None."""
        return self._vocabulary.ids.get(text)

    def is_control(self, id: int) -> bool:
        """Whether `id` is a control token. Raises RequestError if there is no such token."""
        self.check([id])
        return self._vocabulary.is_control(id)

    def check(self, ids: Sequence[int]) -> None:
        """Raise RequestError naming the first of `ids` that is not a token."""
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            wrong = next(id for id in ids if not 0 <= id < self.vocab_size)
            raise RequestError(f"token id {wrong} is outside the vocabulary (0 to {self.vocab_size - 1})")


def _well_formed(text: str) -> str:
    """Join surrogate pairs of `text` and replace lone surrogates, so that it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
