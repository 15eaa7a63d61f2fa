"""Byte-pair encoding: merges ranked in the file (spec B3 and B4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tokenizers import models

from puna.errors import TokenizerError
from puna.model.tokenizer.encoder import WordCache
from puna.model.tokenizer.patterns import LINES, PreTokenizer
from puna.model.tokenizer.pieces import SPACE, byte_characters
from puna.model.tokenizer.split import splitter
from puna.model.tokenizer.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_BYTE_MAP = str.maketrans({byte: character for byte, character in enumerate(byte_characters())})


class BytePairEncoder:
    """BPE over words, either over GPT-2's byte alphabet or over characters with spaces as U+2581."""

    def __init__(
        self, vocabulary: Vocabulary, merges: Iterable[str], pre: PreTokenizer, *, byte_level: bool
    ) -> None:
        ids = dict(vocabulary.plain_ids)
        self._size = len(vocabulary)
        # Bytes without a token get ids beyond the vocabulary, dropped at the end: so the characters
        # around them are not merged with one another.
        alphabet = byte_characters() if byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
        missing = [symbol for symbol in alphabet if symbol not in ids]
        ids.update({symbol: self._size + i for i, symbol in enumerate(missing)})
        self._drop = bool(missing)
        try:
            self._model = models.BPE(
                vocab=ids,
                merges=_usable(merges, ids, vocabulary.where),
                cache_capacity=0,
                byte_fallback=not byte_level,
                ignore_merges=pre.ignore_merges,
            )
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{vocabulary.where}: the merges do not fit the tokens ({error})") from error
        self._byte_level = byte_level
        self._line_ends = {} if byte_level else {text: id for text, id in ids.items() if not text.strip("\n")}
        self._splits = [splitter(step) for step in pre.steps]
        self._caches = [WordCache() for _ in range(len(self._splits) + 1)]

    def encode(self, text: str, *, first: bool) -> list[int]:
        if not self._byte_level:
            text = text.replace(" ", SPACE)
        ids: list[int] = []
        self._encode(text, 0, ids)
        return [id for id in ids if id < self._size] if self._drop else ids

    def _encode(self, text: str, depth: int, ids: list[int]) -> None:
        """Append the ids of `text`, a piece left by the first `depth` steps of the pre-tokenizer."""
        cache = self._caches[depth + 1] if depth < len(self._splits) else None
        if cache is None:
            ids += self._merge(text)
            return
        last = depth + 1 == len(self._splits)
        for piece in self._splits[depth](text):
            known = cache.get(piece)
            if known is None:
                known = []
                if last:
                    known = self._merge(piece)
                else:
                    self._encode(piece, depth + 1, known)
                cache.put(piece, known)
            ids += known

    def _merge(self, word: str) -> list[int]:
        if self._byte_level:
            word = word.encode().decode("latin-1").translate(_BYTE_MAP)
        elif word in self._line_ends:
            return [self._line_ends[word]]
        return [token.id for token in self._model.tokenize(word)]


def _usable(merges: Iterable[str], ids: dict[str, int], where: str) -> list[tuple[str, str]]:
    """Pairs of tokens whose joined text is a token, by rank; a pair listed twice counts once."""
    usable: dict[tuple[str, str], None] = {}
    total = 0
    for merge in merges:
        total += 1
        left, _, right = merge.partition(" ") if merge[:1] != " " else (" ", "", merge[2:])
        if left in ids and right in ids and left + right in ids:
            usable[left, right] = None
    if len(usable) < total:
        logger.debug("%s: %d of %d merges are repeated or unusable", where, total - len(usable), total)
    return list(usable)


__all__ = ["LINES", "BytePairEncoder"]
