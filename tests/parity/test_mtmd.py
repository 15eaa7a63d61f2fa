"""Rows of towers for the text model, by Puna and by llama.cpp's mtmd from the same files."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.audio.recording import Recording
from puna.model.load import load_model
from tests.audio.hearing import Pair, sound
from tests.model.models.parity import original
from tests.tiny.audio.lfm2_audio import TinyLfm2Audio
from tests.tiny.audio.qwen2_audio import TinyQwen2Audio
from tests.tiny.audio.ultravox import TinyUltravox
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.common import Layout
from tests.tiny.vision.minimax_m3 import TinyMiniMaxM3
from tests.tiny.vision.step3 import TinyStep3
from tests.vision import seeing

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")
mtmd = pytest.importorskip("llama_cpp.mtmd_cpp", reason="llama-cpp-python has no mtmd")

pytestmark = pytest.mark.peers

#: Towers that read a recording of 30 seconds alike; mtmd reads 1,500 states at once. It averages those of
#: Voxtral before it joins them, unlike transformers, and has no code for Gemma 3n's.
TOWERS: dict[str, Callable[[], Any]] = {
    # mtmd knows only distances of 512 values and convolutions of nine states.
    "lfm2-audio": lambda: TinyLfm2Audio(
        TinyLfm2(context=1024), hidden=512, heads=8, kernel=9, bands=128, spoken=1600
    ),
    "qwen2-audio": lambda: TinyQwen2Audio(TinyLlama(rope_base=1e6), positions=1500),
    # Of eight states a row, mtmd counts one row too few and aborts.
    "ultravox": lambda: TinyUltravox(TinyLlama(), positions=1500, joined=4),
}


def half_a_minute() -> Recording:
    """Return a recording that fills a window; its end is silent, since mtmd does not reflect it there."""
    found = sound(1, 30.0)
    found.samples[-1600:] = 0
    return found


def their_rows(layout: Layout, shown: Any, kind: int) -> np.ndarray:
    """Return the rows of the first chunk of the `kind` of mtmd's bitmap `shown`: [rows, values of a row]."""
    text = llama_cpp.Llama(str(layout.model), n_ctx=64, n_threads=1, verbose=False)
    settings = mtmd.mtmd_context_params_default()
    settings.use_gpu, settings.n_threads, settings.warmup = False, 1, False
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = mtmd.mtmd_init_from_file(str(layout.projector).encode(), text.model, settings)
    assert context is not None
    chunks = mtmd.mtmd_input_chunks_init()
    prompt = mtmd.mtmd_input_text()
    prompt.text, prompt.text_len = mtmd.mtmd_default_marker(), len(mtmd.mtmd_default_marker())
    prompt.add_special, prompt.parse_special = False, True
    try:
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(shown)
        assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1) == 0
        every = [mtmd.mtmd_input_chunks_get(chunks, n) for n in range(mtmd.mtmd_input_chunks_size(chunks))]
        chunk = next(each for each in every if mtmd.mtmd_input_chunk_get_type(each) == kind)
        assert mtmd.mtmd_encode_chunk(context, chunk) == 0
        shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), text.n_embd()
        found = mtmd.mtmd_get_output_embd(context)
        return np.ctypeslib.as_array(found, shape=(shape[0] * shape[1],)).reshape(shape).copy()
    finally:
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(shown)
        mtmd.mtmd_free(context)


@pytest.mark.parametrize("name", TOWERS)
def test_rows_are_those_of_mtmd(name: str, tmp_path: Path) -> None:
    config = TOWERS[name]()
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    recording = half_a_minute()
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    found = pair.encoded(pair.inputs(pair.run(context=2048), "[img-0]", recording), slice_rows=500).numpy()
    samples = recording.values(0, len(recording.samples))
    heard = mtmd.mtmd_bitmap_init_from_audio(
        len(samples), samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    )
    expected = their_rows(layout, heard, mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO)
    assert found.shape == expected.shape
    # mtmd convolves in half precision, whose errors add up where a recording is silent.
    differences = np.abs(found - expected) / np.abs(expected).max()
    assert np.median(differences.max(axis=1)) < 2e-3
    assert differences.max() < 0.02


#: Towers, and the width and height of pictures that neither resizes: mtmd reads Step's at no other size.
EYES: dict[str, tuple[Callable[[], Any], tuple[int, int]]] = {
    "minimax-m3": (lambda: TinyMiniMaxM3(TinyLlama()), (112, 84)),
    "minimax-m3, three heads": (lambda: TinyMiniMaxM3(TinyLlama(), hidden=60, heads=3, layers=3), (84, 112)),
    "step 3.7": (
        lambda: TinyStep3(TinyLlama(), patch_size=14, image_size=728, whole=728, tile=504, longest=3024),
        (728, 728),
    ),
}


@pytest.mark.parametrize("name", EYES)
def test_rows_of_pictures_are_those_of_mtmd(name: str, tmp_path: Path) -> None:
    make, size = EYES[name]
    config = make()
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    picture = seeing.picture(3, *size)
    pair = seeing.Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    (image,) = seeing.images_of(pair.inputs(pair.run(), "[img-0]", picture))
    found = pair.encoded(image, slice_rows=500).numpy()
    pixels = np.ascontiguousarray(picture)
    shown = mtmd.mtmd_bitmap_init(*size, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
    expected = their_rows(layout, shown, mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE)
    assert found.shape == expected.shape
    # mtmd rounds some products to half precision.
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
