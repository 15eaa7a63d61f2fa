"""Construction of the tokenizer that a GGUF file describes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.errors import TokenizerError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, NumberArray, StringArray
from puna.tokenizer.bpe import BytePairEncoder, byte_level_piece
from puna.tokenizer.longest_match import WordPieceEncoder, WorldEncoder, escaped_piece
from puna.tokenizer.patterns import BY_NAME, DEFAULT, LINES, PreTokenizer
from puna.tokenizer.scored_pieces import ScoredPieceEncoder, raw_piece
from puna.tokenizer.sentence_piece import SentencePieceEncoder, UnigramEncoder
from puna.tokenizer.special_ids import SpecialIds, read_special_ids
from puna.tokenizer.tokenizer import Stripping, TextEncoder, Tokenizer
from puna.tokenizer.vocabulary import (
    PREFIX,
    Piece,
    TokenType,
    Vocabulary,
    flag,
    numbers,
    read_vocabulary,
    spaced_piece,
    strings,
)

logger = logging.getLogger(__name__)

#: Supported values of `tokenizer.ggml.model`.
MODELS = ("gpt2", "llama", "bert", "t5", "gemma4", "rwkv", "plamo2")
#: Limit of merges per token: twice as many as in any known vocabulary.
_MERGES_PER_TOKEN = 5
#: Bytes of a normaliser's table: fifty times the largest known.
_MAX_CHARSMAP = 1 << 24


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Return the tokenizer of `file`.

    Raises UnsupportedModelError for an unknown kind of vocabulary, TokenizerError if metadata is missing or
    inconsistent.
    """
    model = tokenizer_kind(file)
    vocabulary = read_vocabulary(file)
    pre_name, pre = _pre_tokenizer(file, model)
    special = read_special_ids(file, vocabulary, model, pre.add_bos)
    if model != "rwkv":  # a blank line ends an answer only in RWKV; elsewhere it is ordinary text
        vocabulary = vocabulary.with_control(special.ends)
    parts = _parts(file, model, vocabulary, pre, special)
    return Tokenizer(
        model,
        pre_name,
        vocabulary,
        special,
        parts.encoder,
        parts.piece,
        drops_first_space=parts.drops_first_space,
        stripping=_stripping(file, vocabulary, pre_name),
    )


def is_known(file: GGUFFile) -> bool:
    """Whether `tokenizer_from_gguf` splits text as the model was trained to; else it guesses, or fails."""
    pre = file.get(PREFIX + "pre", "")
    named = pre in BY_NAME or pre in ("", "default")
    return file.get(PREFIX + "model") in MODELS and (file.get(PREFIX + "model") != "gpt2" or named)


def tokenizer_kind(file: GGUFFile) -> str:
    """Return which of `MODELS` the tokenizer is. Raises TokenizerError and UnsupportedModelError."""
    model = file.get(PREFIX + "model")
    if not isinstance(model, str) or not model:
        raise TokenizerError(f"{file.path.name}: key '{PREFIX}model' is missing; the file has no tokenizer")
    if model not in MODELS:
        raise UnsupportedModelError(
            f"{file.path.name}: tokenizer {shown(model)} is not supported (supported: {', '.join(MODELS)})"
        )
    return model


@dataclass(frozen=True)
class _Parts:
    encoder: TextEncoder
    piece: Piece
    drops_first_space: bool = False


def _parts(
    file: GGUFFile, model: str, vocabulary: Vocabulary, pre: PreTokenizer, special: SpecialIds
) -> _Parts:
    if model == "bert":
        lowercase = flag(file, "normalizer.lowercase", True)
        word_piece = WordPieceEncoder(
            vocabulary,
            special.unknown,
            lowercase=lowercase,
            strip_accents=flag(file, "normalizer.strip_accents", lowercase),
        )
        return _Parts(word_piece, spaced_piece(vocabulary), drops_first_space=True)
    if model == "rwkv":
        return _Parts(WorldEncoder(vocabulary, special.unknown), escaped_piece(vocabulary))
    if model == "plamo2":
        return _Parts(ScoredPieceEncoder(vocabulary, _scores(file, vocabulary)), raw_piece(vocabulary))
    if pre is LINES:
        bpe = BytePairEncoder(vocabulary, _merges(file, len(vocabulary)), pre, byte_level=False)
        return _Parts(bpe, spaced_piece(vocabulary))
    if model == "llama":
        scores, prefix = _scores(file, vocabulary), flag(file, "add_space_prefix", True)
        sentence_piece = SentencePieceEncoder(vocabulary, scores, space_prefix=prefix)
        return _Parts(sentence_piece, spaced_piece(vocabulary), drops_first_space=prefix)
    if model == "t5":
        scores, prefix = _scores(file, vocabulary), flag(file, "add_space_prefix", True)
        unigram = UnigramEncoder(
            vocabulary,
            scores,
            special.unknown,
            charsmap=_charsmap(file),
            space_prefix=prefix,
            remove_extra_spaces=flag(file, "remove_extra_whitespaces", True),
        )
        return _Parts(unigram, spaced_piece(vocabulary), drops_first_space=prefix)
    bpe = BytePairEncoder(vocabulary, _merges(file, len(vocabulary)), pre, byte_level=True)
    return _Parts(bpe, byte_level_piece(vocabulary))


def _scores(file: GGUFFile, vocabulary: Vocabulary) -> list[float]:
    scores = numbers(file, "scores", len(vocabulary))
    if scores is None:
        raise TokenizerError(
            f"{file.path.name}: key '{PREFIX}scores' is missing; a vocabulary of scored pieces needs it"
        )
    return scores


def _charsmap(file: GGUFFile) -> bytes:
    """Return the normaliser's table, empty if the file has none."""
    value = file.get(PREFIX + "precompiled_charsmap")
    if value is None:
        return b""
    if not isinstance(value, NumberArray) or (found := value.numpy()).dtype.itemsize != 1:
        raise TokenizerError(f"{file.path.name}: key '{PREFIX}precompiled_charsmap' is not an array of bytes")
    if len(found) > _MAX_CHARSMAP:
        raise TokenizerError(
            f"{file.path.name}: key '{PREFIX}precompiled_charsmap' has {len(found)} bytes; "
            f"the maximum is {_MAX_CHARSMAP}"
        )
    return found.tobytes()


def _merges(file: GGUFFile, tokens: int) -> list[str]:
    stored = file.get(PREFIX + "merges")
    if isinstance(stored, StringArray) and len(stored) > _MERGES_PER_TOKEN * tokens:
        raise TokenizerError(
            f"{file.path.name}: key '{PREFIX}merges' has {len(stored)} entries for {tokens} tokens; "
            "the file is damaged"
        )
    merges = strings(file, "merges")
    if merges is None:
        raise TokenizerError(f"{file.path.name}: key '{PREFIX}merges' is missing; a BPE vocabulary needs it")
    return merges


def _pre_tokenizer(file: GGUFFile, model: str) -> tuple[str, PreTokenizer]:
    """Return the pre-tokenizer's name in the file, and the pre-tokenizer."""
    name = file.get(PREFIX + "pre", "")
    name = name if isinstance(name, str) else ""
    spaced = model == "llama" and file.get(PREFIX + "merges") is not None
    usual = BY_NAME.get(ARCHITECTURES.get(file.architecture, UNKNOWN).pre)
    if model == "gemma4" or (spaced and LINES in (usual, BY_NAME.get(name))):
        return name, LINES  # Gemma 4 calls its vocabulary "llama", but it has merges instead of scores
    if model != "gpt2":
        return name, DEFAULT  # other models do not use a pre-tokenizer
    if name in ("", "default"):
        if usual is None and not name:
            logger.warning("%s: key '%spre' is missing, using the default", file.path.name, PREFIX)
        return name, usual or DEFAULT
    if name not in BY_NAME:
        logger.warning(
            "%s: unknown pre-tokenizer %s, using the default; this may make the model's answers worse",
            file.path.name,
            shown(name),
        )
    return name, BY_NAME.get(name, DEFAULT)


def _stripping(file: GGUFFile, vocabulary: Vocabulary, pre: str) -> Stripping:
    """Return the tokens that remove whitespace around them; files do not say, so the model's name does."""
    name = file.get("general.name")
    name = name.lower() if isinstance(name, str) else ""
    if "phi-3" in name or "phi3" in name:
        special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        kept = {vocabulary.ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
        return Stripping(right=frozenset(special) - kept)
    mask = None
    if pre.startswith("jina-v2-") or ARCHITECTURES.get(file.architecture, UNKNOWN).strips_before_mask:
        mask = vocabulary.ids.get("<mask>")
    elif "modern-bert" in name:
        mask = vocabulary.ids.get("[MASK]")
    return Stripping() if mask is None else Stripping(left=frozenset((mask,)))
