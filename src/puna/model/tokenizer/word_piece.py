"""WordPiece: repeatedly takes the longest token at the start of the rest of a word (spec B6)."""

from __future__ import annotations

import regex  # type: ignore[import-untyped]
from tokenizers import normalizers

from puna.errors import TokenizerError
from puna.model.tokenizer.encoder import WordCache
from puna.model.tokenizer.longest import LongestMatch
from puna.model.tokenizer.pieces import SPACE
from puna.model.tokenizer.split import LONG_TEXT
from puna.model.tokenizer.vocabulary import Vocabulary

# As in BERT, every ASCII character except letters, digits, spaces and controls counts as punctuation.
_WORD = regex.compile(r"[!-/:-@\[-`{-~\p{P}]|[^\s!-/:-@\[-`{-~\p{P}]+")


class WordPieceEncoder:
    """BERT's tokenizer. GGUF files mark tokens that start a word with U+2581, not those that continue one."""

    def __init__(
        self, vocabulary: Vocabulary, unknown: int | None, *, lowercase: bool, strip_accents: bool
    ) -> None:
        if unknown is None:
            raise TokenizerError(f"{vocabulary.where}: key 'tokenizer.ggml.unknown_token_id' is missing")
        self._unknown = unknown
        self._normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
        )
        self._longest = LongestMatch(vocabulary.plain_ids)
        self._cache = WordCache()

    def encode(self, text: str, *, first: bool) -> list[int]:
        ids: list[int] = []
        cache = self._cache
        for word in _WORD.findall(self._normalized(text), concurrent=len(text) > LONG_TEXT):
            known = cache.get(word)
            if known is None:
                known = self._word(SPACE + word)
                cache.put(word, known)
            ids += known
        return ids

    def _normalized(self, text: str) -> str:
        """The library lets no other thread run while it is at work, so it gets long texts in slices."""
        # Each character becomes what it does alone: the marks whose order depends on others are left out.
        starts = range(0, len(text), LONG_TEXT)
        return "".join(self._normalizer.normalize_str(text[at : at + LONG_TEXT]) for at in starts)

    def _word(self, word: str) -> list[int]:
        """Ids of one word; just the unknown token if part of the word has no token."""
        ids: list[int] = []
        at = 0
        while at < len(word):
            found = self._longest.find(word, at)
            if found is None:
                return [self._unknown]
            id, at = found
            ids.append(id)
        return ids
