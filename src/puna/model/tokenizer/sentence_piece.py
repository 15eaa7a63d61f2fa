"""SentencePiece's two ways of cutting text into pieces, both by the `sentencepiece` library.

BPE merges by the score of the resulting token (spec B5). Unigram finds the pieces whose log-probabilities add
up to the most (Kudo, arXiv:1804.10959), and replaces characters before that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from sentencepiece import SentencePieceProcessor

from puna.errors import TokenizerError
from puna.model.tokenizer.charsmap import checked
from puna.model.tokenizer.pieces import byte_of
from puna.model.tokenizer.sentence_piece_model import BPE, UNIGRAM, Rules, serialized
from puna.model.tokenizer.vocabulary import TokenType, Vocabulary

#: Text may become these in a Unigram vocabulary; unused tokens are known, and never chosen.
_OF_UNIGRAM = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


class SentencePieceEncoder:
    """Encodes with the `sentencepiece` library, the file's tokens and scores, and no normalisation."""

    def __init__(self, vocabulary: Vocabulary, scores: list[float], *, space_prefix: bool) -> None:
        types: dict[int, TokenType] = {}
        for text, id in _possible(vocabulary).items():
            byte = vocabulary.types[id] == TokenType.BYTE or not vocabulary.has_types
            types[id] = TokenType.BYTE if byte and _names_byte(text) else TokenType.NORMAL
        self._library = _Library(vocabulary, scores, types, Rules(BPE, byte_fallback=True))
        self._space_prefix = space_prefix

    def encode(self, text: str, *, first: bool) -> list[int]:
        return self._library.encode(" " + text if first and self._space_prefix else text)


class UnigramEncoder:
    """Encodes with the `sentencepiece` library, the file's tokens, scores and normalisation.

    What no token stands for becomes bytes, if there are tokens for all of them, else the unknown token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: list[float],
        unknown: int | None,
        *,
        charsmap: bytes,
        space_prefix: bool,
        remove_extra_spaces: bool,
    ) -> None:
        if unknown is None:
            raise TokenizerError(f"{vocabulary.where}: key 'tokenizer.ggml.unknown_token_id' is missing")
        where = f"{vocabulary.where}: key 'tokenizer.ggml.precompiled_charsmap'"
        types: dict[int, TokenType] = {}
        bytes_: list[int] = []
        for text, id in _possible(vocabulary).items():
            kind = TokenType(vocabulary.types[id])
            if kind in _OF_UNIGRAM:
                types[id] = kind
            elif kind == TokenType.BYTE and _names_byte(text):
                bytes_.append(id)
        spells = len(bytes_) == 256
        types |= dict.fromkeys(bytes_ if spells else [], TokenType.BYTE)
        types[unknown] = TokenType.UNKNOWN
        rules = Rules(
            UNIGRAM,
            byte_fallback=spells,
            charsmap=checked(charsmap, where) if charsmap else b"",
            space_prefix=space_prefix,
            remove_extra_spaces=remove_extra_spaces,
        )
        self._rules = rules
        self._made = partial(_Library, vocabulary, scores, types)
        self._libraries = {space_prefix: self._made(rules)}

    def encode(self, text: str, *, first: bool) -> list[int]:
        # Where extra spaces are removed, those that a text begins with are, and only a prefix can be one.
        rules = self._rules
        prefix = rules.space_prefix if first else rules.remove_extra_spaces and text[:1].isspace()
        if prefix not in self._libraries:  # few texts follow others
            self._libraries[prefix] = self._made(replace(rules, space_prefix=prefix))
        return self._libraries[prefix].encode(text)


class _Library:
    """A model of the library."""

    def __init__(
        self, vocabulary: Vocabulary, scores: list[float], types: Mapping[int, TokenType], rules: Rules
    ) -> None:
        if any(math.isnan(score) for score in scores):
            raise TokenizerError(f"{vocabulary.where}: a token's score is not a number")
        self._size = len(vocabulary)
        model, extra = serialized(vocabulary, scores, types, rules)
        self._drop = extra > 0
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(f"{vocabulary.where}: the vocabulary is not usable ({error})") from error

    def encode(self, text: str) -> list[int]:
        """The pieces of `text`, without those that stand for no token."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return [id for id in ids if id < self._size] if self._drop else ids


def _possible(vocabulary: Vocabulary) -> dict[str, int]:
    """The ids that text may become; the library knows no pieces with NUL."""
    return {text: id for text, id in vocabulary.plain_ids.items() if "\0" not in text}


def _names_byte(text: str) -> bool:
    byte = byte_of(text)
    return byte is not None and text == f"<0x{byte:02X}>"
