"""Byte-pair encoding with the ranked merges of the file, and its alphabet of bytes (spec B3 and B4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tokenizers import Tokenizer, models

from puna.errors import TokenizerError
from puna.tokenizer.patterns import PreTokenizer, splitter
from puna.tokenizer.tokenizer import WordCache
from puna.tokenizer.vocabulary import SPACE, Piece, TokenType, Vocabulary

logger = logging.getLogger(__name__)

#: Characters. Longer words are merged by the library's batch call, the only one that releases Python's lock.
_LONG_WORD = 1024

#: Types of tokens that stand for their own spelling.
_LITERAL = frozenset((TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED))


def byte_characters() -> list[str]:
    """Return the printable character that GPT-2 uses for each of the 256 bytes (spec B3)."""
    characters = []
    for byte in range(256):
        if byte == 0xAD:
            characters.append("\u0143")
        elif byte <= 0x20:
            characters.append(chr(byte + 0x100))
        elif 0x7F <= byte <= 0xA0:
            characters.append(chr(byte + 0xA2))
        else:
            characters.append(chr(byte))
    return characters


_BYTE_MAP = str.maketrans(dict(enumerate(byte_characters())))
_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}


class BytePairEncoder:
    """BPE within words, over GPT-2's byte alphabet or over characters with U+2581 for spaces."""

    def __init__(
        self, vocabulary: Vocabulary, merges: list[str], pre: PreTokenizer, *, byte_level: bool
    ) -> None:
        ids = dict(vocabulary.plain_ids)
        self._size = len(vocabulary)
        # Bytes without a token get ids beyond the vocabulary, which are dropped at the end. This prevents the
        # characters around them from being merged.
        alphabet = byte_characters() if byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
        missing = [symbol for symbol in alphabet if symbol not in ids]
        ids.update({symbol: self._size + i for i, symbol in enumerate(missing)})
        self._drop = bool(missing)
        try:
            self._model = _model(ids, merges, pre, bytes_apart=not byte_level)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{vocabulary.where}: the merges do not fit the tokens ({error})") from error
        self._batch = Tokenizer(self._model)
        self._byte_level = byte_level
        self._line_ends = {} if byte_level else {text: id for text, id in ids.items() if not text.strip("\n")}
        self._splits = [splitter(step) for step in pre.steps]
        self._caches = [WordCache() for _ in self._splits]

    def encode(self, text: str, *, first: bool) -> list[int]:
        if not self._byte_level:
            text = text.replace(" ", SPACE)
        ids: list[int] = []
        self._encode(text, 0, ids)
        return [id for id in ids if id < self._size] if self._drop else ids

    def _encode(self, text: str, depth: int, ids: list[int]) -> None:
        """Append the ids of `text`, a piece produced by the first `depth` steps of the pre-tokenizer."""
        while depth < len(self._splits):
            pieces = self._splits[depth](text)
            depth += 1
            if text not in pieces:
                break
        else:
            ids += self._merge(text)
            return
        cache = self._caches[depth - 1]
        last = depth == len(self._splits)
        for piece in pieces:
            known = cache.get(piece)
            if known is None:
                known = []
                if last:
                    known = self._merge(piece) if piece else known
                else:
                    self._encode(piece, depth, known)
                cache.put(piece, known)
            ids += known

    def _merge(self, word: str) -> list[int]:
        if self._byte_level:
            word = word.encode().decode("latin-1").translate(_BYTE_MAP)
        elif word in self._line_ends:
            return [self._line_ends[word]]
        if len(word) > _LONG_WORD:
            (found,) = self._batch.encode_batch_fast([word], add_special_tokens=False)
            return list(found.ids)
        return [token.id for token in self._model.tokenize(word)]


def _model(ids: dict[str, int], merges: list[str], pre: PreTokenizer, *, bytes_apart: bool) -> models.BPE:
    """Return the library's model. Raises plain Exception if a merge does not fit the tokens."""

    def build(pairs: list[tuple[str, str]]) -> models.BPE:
        return models.BPE(
            vocab=ids,
            merges=pairs,
            cache_capacity=0,
            byte_fallback=bytes_apart,
            ignore_merges=pre.ignore_merges,
        )

    # For repeated merges the library would use the last rank, and a merge longer than every token would make
    # it panic.
    if len(set(merges)) == len(merges) and _longest(merges) <= _longest(ids) + len(" "):
        try:
            return build([(left, right) for left, _, right in [merge.partition(" ") for merge in merges]])
        except Exception as error:  # checking 280,000 merges in Python costs more than a try
            logger.debug("dropping unusable merges: %s", error)
    return build(_usable(merges, ids))


def _longest(texts: Iterable[str]) -> int:
    """Return the size in bytes of the longest text."""
    return max((len(text.encode()) for text in texts), default=0)


def _usable(merges: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of two tokens into a token, by rank; of repeated ones, the first."""
    usable: dict[tuple[str, str], None] = {}
    for merge in merges:
        left, _, right = merge[1:].partition(" ")  # the left side is never empty, but may be a space
        left = merge[:1] + left
        if left in ids and right in ids and left + right in ids:
            usable[left, right] = None
    return list(usable)


def byte_level_piece(vocabulary: Vocabulary) -> Piece:
    """Return a function from token id to bytes for byte-level BPE."""

    def piece(id: int) -> bytes:
        text = vocabulary.texts[id]
        if vocabulary.types[id] in _LITERAL:
            return text.encode()
        mapped = (_BYTE_OF.get(character) for character in text)
        return b"".join(
            byte if byte is not None else (" " if character == SPACE else character).encode()
            for character, byte in zip(text, mapped, strict=True)
        )

    return piece
