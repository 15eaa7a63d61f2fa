"""Images in chats of the library, in every accepted form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import puna
from puna.errors import ImageError, RequestError
from tests.model.models.parity import original
from tests.tiny.llama import tiny_llama_gguf
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import file_of, picture


def ask(model: puna.Model, *images: object) -> str:
    message = {"role": "user", "content": "what is this?", "images": list(images)}
    return model.chat([message], temperature=1, seed=1, num_predict=12).text


@pytest.mark.slow
def test_every_form_of_an_image_gives_the_same_answer(tmp_path: Path) -> None:
    config, image = VISION_MODELS["gemma3"](), picture(1)
    layout = config.write(tmp_path, original(config), apart=True)
    path = tmp_path / "image.png"
    path.write_bytes(file_of(image))
    with puna.load(layout.model, projector=layout.projector, num_ctx=256) as model:
        expected = ask(model, path)
        assert expected != ask(model, picture(2))
        forms = [str(path), path.read_bytes(), image, image.convert("RGBA"), np.asarray(image)]
        assert [ask(model, form) for form in forms] == [expected] * len(forms)
        with pytest.raises(ImageError, match=r"not float32 \[2, 2\]"):
            ask(model, np.zeros((2, 2), np.float32))
        with pytest.raises(ImageError, match="cannot be read"):
            ask(model, tmp_path / "nothing.png")
        with pytest.raises(RequestError, match="Expected `array`, got `bytes`"):
            model.chat([{"role": "user", "content": "x", "images": path.read_bytes()}])


def test_image_for_a_model_without_vision_is_refused(tmp_path: Path) -> None:
    with (
        puna.load(tiny_llama_gguf(tmp_path / "blind.gguf"), num_ctx=64) as model,
        pytest.raises(RequestError, match=r"blind\.gguf has no vision tower"),
    ):
        ask(model, picture(1))
