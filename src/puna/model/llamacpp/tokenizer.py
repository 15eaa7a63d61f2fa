"""Tokenizer on llama.cpp's vocabulary, for files whose tokenizer Puna does not know."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from puna.errors import TokenizerError
from puna.model.llamacpp.bindings import bindings
from puna.tokenizer.special_ids import SpecialIds
from puna.tokenizer.tokenizer import Tokenizer
from puna.tokenizer.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from puna.gguf import GGUFFile
    from puna.model.llamacpp.model import LlamaCppModel


def llamacpp_tokenizer(file: GGUFFile, model: LlamaCppModel) -> Tokenizer:
    """Return a tokenizer that splits text as llama.cpp does for `model`. Raises `TokenizerError`.

    Puna reads the file's metadata about tokens, and finds added tokens in a text.
    """
    c, vocabulary = bindings(), model.vocabulary
    read = read_vocabulary(file)
    count = c.llama_vocab_n_tokens(vocabulary)
    if count != len(read):
        raise TokenizerError(
            f"{file.path.name}: llama.cpp finds {count} tokens, and the file has {len(read)}"
        )
    ends = frozenset(id for id in range(count) if c.llama_vocab_is_eog(vocabulary, id))
    bos, eos = (_id(find(vocabulary)) for find in (c.llama_vocab_bos, c.llama_vocab_eos))
    special = SpecialIds(
        bos=bos,
        eos=eos,
        unknown=None,
        ends=ends,
        add_bos=bos is not None and bool(c.llama_vocab_get_add_bos(vocabulary)),
        add_eos=eos is not None and bool(c.llama_vocab_get_add_eos(vocabulary)),
    )
    spaced = c.llama_vocab_type(vocabulary) in (c.LLAMA_VOCAB_TYPE_SPM, c.LLAMA_VOCAB_TYPE_UGM)
    return Tokenizer(
        str(file.get("tokenizer.ggml.model")),
        str(file.get("tokenizer.ggml.pre", "")),
        read.with_control(ends),
        special,
        _Encoder(model),
        _piece(model),
        drops_first_space=spaced and bool(file.get("tokenizer.ggml.add_space_prefix", True)),
    )


def _id(token: int) -> int | None:
    return token if token >= 0 else None


class _Encoder:
    """Implementation of `puna.tokenizer.tokenizer.TextEncoder`."""

    def __init__(self, model: LlamaCppModel) -> None:
        self._c = bindings()
        self._model = model  # keeps the vocabulary alive

    def encode(self, text: str, *, first: bool) -> list[int]:
        data = text.encode()
        count = -(len(data) + 2)  # rarely more than one token per byte
        while count < 0:
            tokens = (ctypes.c_int32 * -count)()
            room, count = (
                -count,
                self._c.llama_tokenize(self._model.vocabulary, data, len(data), tokens, -count, False, False),
            )
            if -count == room:
                raise TokenizerError(f"llama.cpp cannot tokenise a text of {len(data)} bytes")
        return list(tokens[:count])


def _piece(model: LlamaCppModel) -> Callable[[int], bytes]:
    """Return a function that gives the bytes of a token."""
    c = bindings()

    def piece(id: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = c.llama_token_to_piece(model.vocabulary, id, buffer, size, 0, True)
            if written >= 0:
                return buffer.raw[:written]
            size = -written

    return piece
