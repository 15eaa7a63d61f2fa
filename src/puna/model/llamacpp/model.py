"""Model loaded by llama.cpp, as a `RunnableModel`."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from puna.batch import Input
from puna.errors import OptionError, UnsupportedModelError
from puna.model.llamacpp.bindings import bindings, complaint
from puna.model.llamacpp.cache import LlamaCppCache, LlamaCppTexts
from puna.model.llamacpp.context import Context, ContextSizes
from puna.options import LLAMACPP

if TYPE_CHECKING:
    from pathlib import Path

    from puna.batch import BatchArrays
    from puna.kvcache.cache import Cache
    from puna.kvcache.types import KVTypes
    from puna.model.llamacpp.memory import LlamaCppForecast
    from puna.ops import Array, Backend
    from puna.options import Placement

_NO_GPUS: Final = (
    "this llama-cpp-python was built without GPUs: options that place layers on them have no effect"
)


class LlamaCppModel:
    """`RunnableModel` whose weights, caches and passes are llama.cpp's; its results are arrays of `ops`."""

    engine: Final = LLAMACPP
    classifier: Final = None
    encodes_prompts: Final = False
    grows: Final = False
    exact_context: Final = False

    def __init__(
        self,
        path: Path,
        forecast: LlamaCppForecast,
        ops: Backend,
        *,
        batch_size: int,
        placement: Placement,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load the file at `path`. Raises `UnsupportedModelError`, and `OptionError` for too many shares."""
        self.ops = ops
        self._c = c = bindings()
        self._layers = forecast.layers
        self._batch_size = batch_size
        wants_gpu = placement.num_gpu > 0 or placement.main_gpu > 0 or bool(placement.tensor_split)
        #: Warnings for users of the model.
        self.warnings = (_NO_GPUS,) if wants_gpu and not c.llama_supports_gpu_offload() else ()
        total = forecast.weight_bytes

        def report(share: float, user_data: object) -> bool:
            if progress is not None:
                progress(int(share * total), total)
            return True

        self.pointer = pointer = self._load(path, placement, report)
        self._closing = weakref.finalize(self, c.llama_model_free, pointer)
        self.vocabulary = c.llama_model_get_vocab(pointer)
        if c.llama_model_is_diffusion(pointer):
            raise UnsupportedModelError(f"{path.name}: models that generate by diffusion are not supported")
        if c.llama_model_has_encoder(pointer) and c.llama_model_has_decoder(pointer):
            raise UnsupportedModelError(f"{path.name}: encoder-decoder models are not supported")
        self.max_sequences: int = c.llama_max_parallel_sequences()
        self.generates = not forecast.whole and bool(c.llama_model_has_decoder(pointer))
        self._recurrent = bool(c.llama_model_is_recurrent(pointer) or c.llama_model_is_hybrid(pointer))

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        return [Input(token) for token in tokens]

    def cache_room(self, reserved: int = 0) -> int:
        return max(self.ops.available_memory(reserved), 0)

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        rows = min(self._batch_size, capacity) if self.generates else max(self._batch_size, context)
        sizes = ContextSizes(sequences, capacity, rows, whole=not self.generates)
        return self._cache(
            Context(self.pointer, self, sizes, types, self.ops.threads()), sequences, context, capacity
        )

    def sample_cache(self, types: KVTypes) -> Cache:
        return self._cache(None, 1, 1, 1)

    def _cache(self, context: Context | None, sequences: int, longest: int, capacity: int) -> Cache:
        if not self.generates:
            return LlamaCppTexts(self.ops, context, sequences=sequences)
        return LlamaCppCache(
            self._layers,
            context,
            sequences=sequences,
            longest=longest,
            capacity=capacity,
            recurrent=self._recurrent,
        )

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.ops.array(self._evaluate(cache, states=False)[0])

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.ops.array(self._evaluate(cache, states=True)[1])

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        logits, hidden = self._evaluate(cache, states=True)
        return self.ops.array(hidden), self.ops.array(logits)[predicted]

    def _evaluate(self, cache: Cache, *, states: bool) -> tuple[Any, Any]:
        assert isinstance(cache, LlamaCppCache | LlamaCppTexts)
        assert cache.batch is not None, "call `start_forward` first"
        return cache.llama.evaluate(cache.batch, states=states)

    def _load(self, path: Path, placement: Placement, report: Callable[[float, object], bool]) -> Any:
        c = self._c
        parameters = c.llama_model_default_params()
        parameters.n_gpu_layers = placement.num_gpu
        parameters.load_mode = c.LLAMA_LOAD_MODE_MMAP if placement.use_mmap else c.LLAMA_LOAD_MODE_NONE
        shares = placement.tensor_split
        if len(shares) > c.LLAMA_MAX_DEVICES:
            raise OptionError(
                f'option "tensor_split" has {len(shares)} shares, and this llama.cpp knows '
                f"{c.LLAMA_MAX_DEVICES} devices"
            )
        if shares:  # as many as possible; the rest are 0
            given = (ctypes.c_float * c.LLAMA_MAX_DEVICES)(*shares)
            parameters.tensor_split = given
        elif placement.main_gpu:
            parameters.main_gpu, parameters.split_mode = placement.main_gpu, c.LLAMA_SPLIT_MODE_NONE
        callback = c.llama_progress_callback(report)
        parameters.progress_callback = callback
        pointer = c.llama_model_load_from_file(str(path).encode(), parameters)
        if not pointer:
            reason = complaint("no reason given")
            raise UnsupportedModelError(f"{path.name}: llama.cpp cannot load it: {reason}")
        return pointer
