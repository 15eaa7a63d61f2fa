"""Context of llama.cpp: computes batches into logits and hidden states, and keeps sequences."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import CacheFullError, GenerationError, ModelError
from puna.gguf import GGMLType
from puna.model.llamacpp.bindings import bindings, complaint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from puna.batch import Batch
    from puna.kvcache.types import KVTypes

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ContextSizes:
    """Capacity of a context; `rows` of a batch are computed in one pass."""

    sequences: int
    capacity: int  # positions of all sequences together
    rows: int
    whole: bool  # whether it is an encoder, which reads each text in one pass and has no logits


class Context:
    """State of up to `sizes.sequences` sequences of a model in llama.cpp.

    `pointer` is llama.cpp's model; `owner` frees it and is therefore kept alive. Raises `ModelError` if the
    context cannot be made.
    """

    def __init__(
        self, pointer: int, owner: object, sizes: ContextSizes, types: KVTypes, threads: int
    ) -> None:
        self._c = c = bindings()
        self._owner = owner
        self.sizes = sizes
        self._vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(pointer))
        self._width = c.llama_model_n_embd_out(pointer)
        parameters = c.llama_context_default_params()
        parameters.n_ctx = sizes.capacity
        parameters.n_batch = parameters.n_ubatch = sizes.rows
        parameters.n_seq_max = sizes.sequences
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.type_k, parameters.type_v = int(types.keys), int(types.values)
        if types.values is GGMLType.F32:  # flash attention would round them, and keys, to 16 bits
            parameters.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.pooling_type = c.LLAMA_POOLING_TYPE_NONE  # the engine pools texts
        parameters.kv_unified = True  # one pool of cells, so that prefixes can be shared
        parameters.swa_full = True  # otherwise a prefix longer than a window could not be continued
        parameters.no_perf = True
        self._context = c.llama_init_from_model(pointer, parameters)
        if not self._context:
            raise ModelError(
                f"llama.cpp cannot keep {sizes.capacity} tokens of {sizes.sequences} sequences: "
                f"{complaint('no reason given; a smaller num_ctx may fit')}"
            )
        self._closing = weakref.finalize(self, c.llama_free, self._context)
        self._memory = c.llama_get_memory(self._context)
        # Some encoders are decoders that also attend to later tokens: these have a memory, which a text
        # fills.
        self._encodes = sizes.whole and not (self._memory and c.llama_model_has_decoder(pointer))
        self.can_shift = bool(self._memory and c.llama_memory_can_shift(self._memory)) and (
            # Learned positions are part of the keys, which therefore cannot be moved.
            c.llama_model_rope_type(pointer) in (c.LLAMA_ROPE_TYPE_NORM, c.LLAMA_ROPE_TYPE_NEOX)
        )

    def evaluate(self, batch: Batch, *, states: bool) -> tuple[Floats, Floats]:
        """Return logits [outputs, vocab] and, with `states`, hidden states [outputs, hidden] of a batch.

        Raises `CacheFullError` and `GenerationError`, keeping the results so far.
        """
        c = self._c
        wanted = np.ones(len(batch), np.int8)
        if batch.outputs is not None:
            wanted[:] = 0
            wanted[batch.outputs] = 1
        c.llama_set_embeddings(self._context, states)
        logits, hidden = [], []
        for begin, end in self._pieces(batch):
            outputs = wanted[begin:end]
            # With hidden states, llama.cpp outputs all rows.
            self._run(batch, begin, end, np.ones_like(outputs) if states else outputs)
            rows = np.flatnonzero(outputs) if states else np.arange(np.count_nonzero(outputs))
            count = end - begin if states else len(rows)
            if not self.sizes.whole:
                logits.append(_rows(c.llama_get_logits(self._context), count, self._vocab)[rows])
            if states:
                hidden.append(_rows(c.llama_get_embeddings(self._context), count, self._width)[rows])
            if self.sizes.whole and not self._encodes:
                for sequence in set(batch.sequences[begin:end].tolist()):
                    self.remove(sequence, 0)
        return _joined(logits, self._vocab), _joined(hidden, self._width)

    def remove(self, sequence: int, begin: int, end: int = -1) -> bool:
        """Forget positions [begin, end) of a sequence (end -1: all). Returns False if that is impossible."""
        return self._memory is None or bool(self._c.llama_memory_seq_rm(self._memory, sequence, begin, end))

    def copy(self, source: int, target: int, count: int) -> None:
        """Share the first `count` positions of `source` with `target`, which must be empty."""
        self._c.llama_memory_seq_cp(self._memory, source, target, 0, count)

    def move(self, sequence: int, begin: int, offset: int) -> None:
        """Add `offset` to the positions of `sequence` from `begin` on."""
        self._c.llama_memory_seq_add(self._memory, sequence, begin, -1, offset)

    def close(self) -> None:
        self._closing()
        self._context = self._memory = None

    def _pieces(self, batch: Batch) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows that fit into a pass."""
        begin, rows = 0, self.sizes.rows
        while begin < len(batch):
            end = min(begin + rows, len(batch))
            if self.sizes.whole and end < len(batch):
                same = np.flatnonzero(batch.sequences[begin:end] != batch.sequences[end])
                end = begin + int(same[-1]) + 1 if len(same) else end
            yield begin, end
            begin = end

    def _run(self, batch: Batch, begin: int, end: int, outputs: NDArray[np.int8]) -> None:
        c, count = self._c, end - begin
        # These arrays must outlive the call; each row's list of sequences has one entry.
        tokens = np.ascontiguousarray(batch.tokens[begin:end], np.int32)
        positions = np.ascontiguousarray(batch.positions[begin:end], np.int32)
        sequences = np.ascontiguousarray(batch.sequences[begin:end], np.int32)
        lists = sequences.ctypes.data + np.arange(count, dtype=np.uintp) * sequences.itemsize
        ones = np.ones(count, np.int32)
        outputs = np.ascontiguousarray(outputs)
        fields: dict[str, NDArray[Any]] = {
            "token": tokens,
            "pos": positions,
            "n_seq_id": ones,
            "seq_id": lists,
            "logits": outputs,
        }
        given = c.llama_batch(n_tokens=count)
        for name, kind in given._fields_:
            if name in fields:
                setattr(given, name, ctypes.cast(fields[name].ctypes.data, kind))
        run = c.llama_encode if self._encodes else c.llama_decode
        status = run(self._context, given)
        if status == 1:
            raise CacheFullError(f"llama.cpp has no room for {count} more tokens; use a larger num_ctx")
        if status:
            raise GenerationError(
                f"llama.cpp could not compute {count} tokens: {complaint(f'status {status}')}"
            )
        c.llama_synchronize(self._context)


def _rows(pointer: Any, count: int, width: int) -> Floats:
    if not count:
        return np.empty((0, width), np.float32)
    if not pointer:
        raise GenerationError("llama.cpp has computed no output of this model")
    return np.ctypeslib.as_array(pointer, (count, width))


def _joined(parts: list[Floats], width: int) -> Floats:
    # Copied, because the next pass overwrites llama.cpp's buffers.
    return np.concatenate(parts) if parts else np.empty((0, width), np.float32)
