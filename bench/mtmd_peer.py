"""Models that see or hear in llama.cpp: libmtmd, through llama-cpp-python's low-level calls."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from llama_cpp_peer import log_nothing
from numpy.typing import NDArray

_BATCH = 512


class Mtmd:
    """A text model and a tower, with a context for one sequence of `context` tokens."""

    def __init__(self, text: Path, tower: Path, *, context: int, threads: int, flash: bool) -> None:
        log_nothing(llama_cpp.llama_log_set)
        log_nothing(mtmd.mtmd_helper_log_set)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(text).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {text}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context
        settings.n_batch = settings.n_ubatch = _BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = int(flash)
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        vision = mtmd.mtmd_context_params_default()
        vision.use_gpu = vision.warmup = vision.print_timings = False
        vision.n_threads = threads
        vision.flash_attn_type = int(flash)
        self._tower = mtmd.mtmd_init_from_file(str(tower).encode(), self._model, vision)
        if not self._tower:
            raise RuntimeError(f"llama.cpp cannot load {tower}")
        self.tokens = 0  # of the last prompt, including those of the image

    def close(self) -> None:
        mtmd.mtmd_free(self._tower)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def answer(self, picture: NDArray[np.uint8], text: str) -> tuple[float, float]:
        """Return the seconds of the tower, and of all from the request (image, text) to the first token."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        begin, encoding = time.perf_counter(), 0.0
        chunks = self._chunks(self._picture(picture), text)
        place, after = llama_cpp.llama_pos(0), llama_cpp.llama_pos(0)
        self.tokens = 0
        count = mtmd.mtmd_input_chunks_size(chunks)
        for index in range(count):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            self.tokens += mtmd.mtmd_input_chunk_get_n_tokens(chunk)
            if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                encoded = time.perf_counter()
                status = mtmd.mtmd_encode_chunk(self._tower, chunk)
                encoding += time.perf_counter() - encoded
                rows = mtmd.mtmd_get_output_embd(self._tower)
                status = status or mtmd.mtmd_helper_decode_image_chunk(
                    self._tower, self._context, chunk, rows, place, 0, _BATCH, ctypes.byref(after),
                    ctypes.cast(None, mtmd.mtmd_helper_post_decode_callback), None,
                )  # fmt: skip
            else:
                status = mtmd.mtmd_helper_eval_chunk_single(
                    self._tower, self._context, chunk, place, 0, _BATCH, index + 1 == count,
                    ctypes.byref(after),
                )  # fmt: skip
            if status != 0:
                raise RuntimeError(f"llama.cpp cannot evaluate part {index} of the prompt: {status}")
            place.value = after.value
        size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, -1), (size,))
        int(logits.argmax())
        took = time.perf_counter() - begin
        mtmd.mtmd_input_chunks_free(chunks)
        return encoding, took

    def encode(self, samples: NDArray[np.float32]) -> float:
        """Return the seconds from the spectrogram of a recording to its rows, which are counted."""
        sound = np.ascontiguousarray(samples).ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        chunks = self._chunks(mtmd.mtmd_bitmap_init_from_audio(len(samples), sound), "")
        encoding, self.tokens = 0.0, 0
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO:
                self.tokens += mtmd.mtmd_input_chunk_get_n_tokens(chunk)
                begin = time.perf_counter()
                status = mtmd.mtmd_encode_chunk(self._tower, chunk)
                encoding += time.perf_counter() - begin
                if status != 0:
                    raise RuntimeError(f"llama.cpp cannot encode part {index} of the recording: {status}")
        mtmd.mtmd_input_chunks_free(chunks)
        return encoding

    def _picture(self, picture: NDArray[np.uint8]) -> mtmd.mtmd_bitmap_p:
        height, width, _ = picture.shape
        pixels = np.ascontiguousarray(picture).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return mtmd.mtmd_bitmap_init(width, height, pixels)

    def _chunks(self, bitmap: mtmd.mtmd_bitmap_p, text: str) -> mtmd.mtmd_input_chunks_p:
        raw = mtmd.mtmd_default_marker() + text.encode()
        prompt = mtmd.mtmd_input_text(raw, len(raw), True, True)
        chunks = mtmd.mtmd_input_chunks_init()
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        status = mtmd.mtmd_tokenize(self._tower, chunks, ctypes.byref(prompt), bitmaps, 1)
        mtmd.mtmd_bitmap_free(bitmap)
        if status != 0:
            raise RuntimeError(f"llama.cpp cannot read the prompt: {status}")
        return chunks
