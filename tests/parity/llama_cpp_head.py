"""An EAGLE-3 head in llama.cpp, driven as its `common/speculative.cpp` does."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from bench.llama_cpp_peer import log_nothing

#: Functions of a header for its own programs, which are C++ and not among the bindings.
_SET_INPUT = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_GET_INPUT = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
_SET_STATES = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_GET_STATES = "_Z26llama_get_embeddings_nextnP13llama_context"
_ENCODE, _DECODE = 0, 1


def head_log_probabilities(
    target: Path, head: Path, layers: tuple[int, ...], text: list[int]
) -> torch.Tensor:
    """Return log-probabilities float64 [text - 1, vocab] after each token of `text` but the first.

    `layers` are those whose inputs the head reads, all of them the target's own.
    """
    log_nothing(llama_cpp.llama_log_set)
    llama_cpp.llama_backend_init()
    opened = [_context(target, len(text), None)]
    opened.append(_context(head, len(text), opened[0][1]))
    (_, reads), (drafts, context) = opened
    for layer in layers:
        _function(_SET_INPUT, None, ctypes.c_uint32, ctypes.c_bool)(reads, layer, True)
    _function(_SET_STATES, None, ctypes.c_bool, ctypes.c_bool)(context, True, True)
    _process(reads, _DECODE, [(token, place, None) for place, token in enumerate(text)])
    read = _function(_GET_INPUT, ctypes.POINTER(ctypes.c_float), ctypes.c_uint32)
    size = llama_cpp.llama_model_n_embd(opened[0][0])
    features = np.concatenate([_copy(read(reads, layer), len(text), size) for layer in layers], axis=1)
    _process(context, _ENCODE, [(None, place, row) for place, row in enumerate(features)])
    states = _function(_GET_STATES, ctypes.POINTER(ctypes.c_float))(context)
    fused = _copy(states, len(text), llama_cpp.llama_model_n_embd(drafts))
    _process(context, _DECODE, [(token, place, fused[place]) for place, token in enumerate(text[1:])])
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(drafts))
    rows = (llama_cpp.llama_get_logits_ith(context, row) for row in range(len(text) - 1))
    logits = torch.from_numpy(np.stack([np.ctypeslib.as_array(row, (vocab,)).copy() for row in rows]))
    for model, each in reversed(opened):
        llama_cpp.llama_free(each)
        llama_cpp.llama_model_free(model)
    return torch.log_softmax(logits.double(), dim=-1)


def _context(path: Path, length: int, other: Any) -> tuple[Any, Any]:
    """Return a model and a context with keys and values in float32; a head's knows the target's context."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp cannot load {path}"
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = max(length, 64)
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = 0
    settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
    if other is not None:
        settings.ctx_other = other
    context = llama_cpp.llama_init_from_model(model, settings)
    assert context, f"llama.cpp cannot make a context for {path}"
    return model, context


def _process(context: Any, kind: int, rows: list[tuple[int | None, int, np.ndarray | None]]) -> None:
    """Compute rows of a token, a position and a vector, all of which give results."""
    batch, kept = llama_cpp.llama_batch_ext_init(context), []
    for token, place, values in rows:
        given = None
        if values is not None:
            kept.append(np.ascontiguousarray(values, np.float32))
            pointer = kept[-1].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            given = llama_cpp.llama_embd(pointer, 1, kept[-1].size)
        if token is None:
            row = llama_cpp.llama_batch_ext_add_embd(batch, 0, given)
        else:
            row = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
            assert given is None or llama_cpp.llama_batch_ext_set_embd_token(batch, row, given)
        assert llama_cpp.llama_batch_ext_set_pos(batch, row, ctypes.byref(ctypes.c_int32(place)))
        assert llama_cpp.llama_batch_ext_set_output_logits(batch, row, True)
    status = llama_cpp.llama_process(context, kind, batch)
    llama_cpp.llama_synchronize(context)
    llama_cpp.llama_batch_ext_free(batch)
    assert status == 0, f"llama_process failed with {status}"


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function whose first argument is a context."""
    found = getattr(llama_cpp.llama_cpp._lib, name)
    found.restype, found.argtypes = result, [ctypes.c_void_p, *arguments]
    return found


def _copy(pointer: Any, rows: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array(pointer, (rows, size)).copy()
