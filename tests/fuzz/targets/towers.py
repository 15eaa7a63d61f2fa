"""Vision and audio towers with tampered metadata, tensors or bytes: loaded, and given pictures or sounds."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import puna
from puna.model.memory import is_of_images, is_of_sound
from tests.audio.hearing import sound
from tests.fuzz.case import Bounds
from tests.fuzz.invented import Model
from tests.fuzz.tampering import encoded_at_times_damaged, tamper, without_architecture
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import picture

BOUNDS = Bounds(seconds=5.0, memory=256 << 20)

_OF_TOWERS = ("vision.", "audio.", "mm.", "projector_type", "use_gelu", "use_silu")


@dataclass(frozen=True)
class _Perceiving:
    """A model with a tower, whose metadata and tensors are apart from the text model's."""

    text: Model
    tower: Model
    beside: bool  # the tower has a file of its own
    hears: bool


def _perceiving(path: Path, projector: Path | None, *, hears: bool) -> _Perceiving:
    text = Model.read(path)
    if projector is not None:
        return _Perceiving(text, Model.read(projector), True, hears)
    tower = Model(
        {key: text.keys.pop(key) for key in list(text.keys) if _is_of_tower(key)},
        {
            name: text.tensors.pop(name)
            for name in list(text.tensors)
            if is_of_images(name) or is_of_sound(name)
        },
    )
    return _Perceiving(text, tower, False, hears)


def _is_of_tower(key: str) -> bool:
    return key.partition(".")[2].startswith(_OF_TOWERS)


def _models() -> list[_Perceiving]:
    """Build every tiny model that sees or hears: before a case's time begins, since it takes seconds."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, models in (("sees", VISION_MODELS), ("hears", HEARING_MODELS)):
            for name, tiny in models.items():
                (place := Path(folder, kind, name)).mkdir(parents=True)
                config = tiny()
                layout = config.write(place, config.build())
                found.append(_perceiving(layout.model, layout.projector, hears=kind == "hears"))
    return found


_MODELS = _models()
_KEYS = without_architecture(key for model in _MODELS for key in model.tower.keys)
_TENSORS = sorted({name for model in _MODELS for name in model.tower.tensors})


def fuzz(dice: random.Random, folder: Path) -> None:
    model = dice.choice(_MODELS)
    text, tower = model.text, model.tower.copy()
    architecture = (tower if model.beside else text).keys["general.architecture"]
    tamper(dice, tower, architecture, _KEYS, _TENSORS)
    path, files = folder / "model.gguf", {}
    if model.beside:
        path.write_bytes(text.encode())
        files["projector"] = folder / "tower.gguf"
        files["projector"].write_bytes(encoded_at_times_damaged(dice, tower))
    else:
        whole = Model(text.keys | tower.keys, text.tensors | tower.tensors)
        path.write_bytes(encoded_at_times_damaged(dice, whole))
    os.environ["PUNA_OPS"] = dice.choice(("cpu", "reference"))
    width, height = (dice.choice((1, 30, 80, 300)) for _ in range(2))
    shown = {"audio": [sound(1)]} if model.hears else {"images": [picture(1, width, height)]}
    with puna.load(path, **files, num_ctx=dice.choice((256, 2048)), parallel=1) as loaded:
        loaded.chat([{"role": "user", "content": "what is this?", **shown}], seed=1, num_predict=2)
