"""Vision models against Hugging Face transformers, on tiny random weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import ImagePart
from puna.model.load import load_model
from tests.engine.runs import Watched
from tests.model.models.parity import check_close, original
from tests.samples import sampled
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.deepseek_ocr2 import TinyDeepSeekOcr2
from tests.tiny.vision.dots_ocr import TinyDotsOcr
from tests.tiny.vision.kimi_k25 import TinyKimiK25
from tests.tiny.vision.lighton import TinyLightOn
from tests.tiny.vision.minicpmv import TinyMiniCPMV
from tests.tiny.vision.minimax_m3 import TinyMiniMaxM3
from tests.tiny.vision.models import VISION_MODELS
from tests.tiny.vision.paddleocr import TinyPaddleOcr
from tests.tiny.vision.step3 import TinyStep3
from tests.vision.seeing import Pair, check_answer, check_scores, images_of, picture


@pytest.fixture(scope="module", params=VISION_MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    config = VISION_MODELS[request.param]()
    theirs = original(config)
    layout = config.write(tmp_path_factory.mktemp(request.param), theirs)
    return Pair(load_model(layout.model, projector=layout.projector), theirs, config)


#: Longer than any window, chunk or batch of the tiny models.
LONG = "many words that go on and on about nothing at all "
TEXTS = {
    "one": "hello [img-0] world",
    "two, text between": "a[img-0] the story [img-1]b",
    "first": "[img-0]what is this",
    "last": "once upon[img-0]",
    "the same twice": "a[img-0]b[img-0]c",
    "text beyond the window": f"{LONG}[img-0]{LONG}",
}


def test_projected_embeddings_agree(pair: Pair) -> None:
    run = pair.run()
    inputs = pair.inputs(run, "a [img-0] b [img-1] c", picture(1), picture(2, 50, 90))
    found = torch.cat([pair.encoded(image, slice_rows=7) for image in images_of(inputs)])
    check_close(pair.ours, found, pair.embedded(inputs))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=[] if name == "two, text between" else pytest.mark.slow)
        for name, text in TEXTS.items()
    ],
    ids=[name.replace(" ", "-") for name in TEXTS],
)
def test_log_probabilities_agree_at_every_position(pair: Pair, text: str) -> None:
    run = pair.run()
    check_scores(pair, run, 0, pair.inputs(run, text, picture(1), picture(2, 50, 90)))


@pytest.mark.slow
def test_a_second_turn_reuses_the_first_and_reads_its_own_image(pair: Pair) -> None:
    run = pair.run()
    first = pair.inputs(run, "once upon a time there was one [img-0] is", picture(1))
    run.submit_inputs(0, first, logprobs=True, num_predict=4)
    run.finish()
    check_answer(pair, run, 0, first)
    assert run.engine.images.encoded == 1
    text = "once upon a time there was one [img-0] is this, and [img-1]?"
    both = pair.inputs(run, text, picture(1), picture(3))
    run.submit_inputs(1, both, logprobs=True, num_predict=4)
    run.finish()
    check_answer(pair, run, 1, both)
    assert run.done(1).cached >= len(first) - 1
    assert run.engine.images.encoded == 2


@pytest.mark.slow
def test_the_same_text_with_another_image_shares_the_prefix_before_it(pair: Pair) -> None:
    run = pair.run()
    for number, seed in enumerate((1, 2, 3)):  # recurrent states are kept where two texts diverge
        inputs = pair.inputs(run, "once more the same words [img-0] now", picture(seed))
        run.submit_inputs(number, inputs, logprobs=True, num_predict=1)
        run.finish()
        check_answer(pair, run, number, inputs)
    begin = next(place for place, item in enumerate(inputs) if isinstance(item.payload, ImagePart))
    assert 0 < run.done(2).cached <= begin


@pytest.mark.slow
def test_an_image_agrees_beside_other_requests_and_in_small_batches(pair: Pair) -> None:
    run = pair.run(Watched, batch_size=8)
    run.submit(0, "hello world", num_predict=24, logprobs=True)
    run.engine.step()
    inputs = pair.inputs(run, "look at [img-0] and at [img-1]!", picture(4), picture(5, 90, 40))
    run.submit_inputs(1, inputs, logprobs=True, num_predict=4)
    run.finish()
    check_answer(pair, run, 1, inputs)
    alone = pair.run()
    alone.submit(0, "hello world", num_predict=24)
    alone.finish()
    assert run.tokens(0) == alone.tokens(0)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.5", "2.6", "4.5", "2.6 with audio", "4.5 with audio"])
def test_other_versions_of_minicpmv_agree(version: str, tmp_path: Path) -> None:
    number, _, audio = version.partition(" ")
    config = TinyMiniCPMV(TinyLlama(hidden=256), version=number, audio=bool(audio))
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    check_scores(pair, pair.run(), 0, pair.inputs(pair.run(), "hello [img-0] world", picture(6, 70, 40)))


#: Settings that no published model of these kinds has.
VARIANTS: dict[str, Callable[[], Any]] = {
    "deepseek-ocr 2, one key head": lambda: TinyDeepSeekOcr2(
        TinyLlama(heads=2), heads=3, kv_heads=1, rope_base=500.0, norm_eps=1e-3
    ),
    "deepseek-ocr 2, all key heads": lambda: TinyDeepSeekOcr2(TinyLlama(kv_heads=4), kv_heads=4, layers=3),
    "dots.ocr, three heads": lambda: TinyDotsOcr(
        TinyLlama(heads=2, kv_heads=1), heads=3, layers=3, norm_eps=1e-3
    ),
    "dots.ocr, all key heads, tied": lambda: TinyDotsOcr(TinyLlama(kv_heads=4), tied=True),
    "kimi k2.5, three heads, three patches a side of a row": lambda: TinyKimiK25(
        TinyLlama(), hidden=36, heads=3, layers=3, side=7, merge=3
    ),
    "lighton, three heads": lambda: TinyLightOn(TinyLlama(heads=2, kv_heads=1), heads=3, layers=3),
    "lighton, all key heads, tied": lambda: TinyLightOn(TinyLlama(kv_heads=4), tied=True),
    "minimax m3, three heads, three patches a side of a row": lambda: TinyMiniMaxM3(
        TinyLlama(), hidden=60, heads=3, layers=3, projected=52,
        vision={
            "spatial_merge_size": 3, "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
        },
    ),
    "paddleocr, three heads, untied": lambda: TinyPaddleOcr(
        TinyLlama(heads=3, kv_heads=1), heads=3, layers=3, tied=False
    ),
    "paddleocr, biases": lambda: TinyPaddleOcr(TinyLlama(kv_heads=4), biased=True),
    "step 3.7, three heads, small tiles, biased": lambda: TinyStep3(
        TinyLlama(), hidden=36, heads=3, layers=3, image_size=48, tile=16, longest=64, biased=True
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS, ids=lambda name: name.replace(" ", "-"))
def test_unusual_readers_of_documents_agree(name: str, tmp_path: Path) -> None:
    config = VARIANTS[name]()
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    run = pair.run()
    check_scores(pair, run, 0, pair.inputs(run, "hello [img-0] world", picture(6, 70, 40)))


#: Towers that files keep in different ways: the others run in `make test-thorough`.
SAMPLE = (
    "deepseek-ocr",
    "gemma3",
    "gemma3n",
    "gemma4",
    "internvl",
    "llama4",
    "llava",
    "minicpmv",
    "mllama",
    "qwen3vl",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(VISION_MODELS, SAMPLE))
def test_a_tower_in_its_own_file_agrees_too(kind: str, tmp_path: Path) -> None:
    config = VISION_MODELS[kind]()
    theirs = original(config)
    layout = config.write(tmp_path, theirs, apart=True)
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    run = pair.run()
    check_scores(pair, run, 0, pair.inputs(run, "hello [img-0] world", picture(6, 70, 40)))
