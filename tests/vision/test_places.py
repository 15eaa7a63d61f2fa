"""Text written around an image, compared with the reference's processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.model.load import load_model
from tests.model.models.parity import original
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import Pair, file_of, picture

#: Stands for one row of an image.
PART = "<|part|>"
SIZES = [(80, 60), (20, 90), (300, 40), (56, 56), (120, 110)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "idefics3", "internvl", "kimi k2.5", "lfm2", "minicpmv", "minicpmv 4.6", "minimax m3", "step 3.7",
    ],
)  # fmt: skip
def test_text_around_an_image_matches_the_processors(kind: str, tmp_path: Path) -> None:
    config = VISION_MODELS[kind]()
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    run, tokenizer = pair.run(), pair.ours.tokenizer
    (part,) = tokenizer.encode(PART, add_special=False)
    for number, size in enumerate(SIZES):
        (image,) = run.engine.images.read([file_of(picture(number, *size))])
        placed = pair.ours.vision.place(image)
        expected = tokenizer.encode(config.written(image), add_special=False)
        assert [part if item.payload is not None else item.token for item in placed] == expected
        rows = [item.payload.begin for item in placed if item.payload is not None]
        assert rows == list(range(image.rows))
        assert placed[0].together == len(placed) - 1


#: Tokens around an image in published chat templates.
AROUND = {
    "deepseek-ocr 2": (),
    "dots.ocr": ("<|img|>", "<|endofimg|>"),
    "lighton": (),
    "paddleocr": ("<|IMAGE_START|>", "<|IMAGE_END|>"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", AROUND)
def test_rows_of_documents_stand_between_the_published_tokens(kind: str, tmp_path: Path) -> None:
    config = VISION_MODELS[kind]()
    layout = config.write(tmp_path, original(config))
    pair = Pair(load_model(layout.model, projector=layout.projector), original(config), config)
    (image,) = pair.run().engine.images.read([file_of(picture(1, 80, 60))])
    placed = pair.ours.vision.place(image)
    around = [pair.ours.tokenizer.id_of(token) for token in AROUND[kind]]
    assert [item.token for item in placed if item.payload is None] == around
    rows = placed[1:-1] if around else placed
    assert [item.payload.begin for item in rows] == list(range(image.rows))
