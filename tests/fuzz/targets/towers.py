"""Vision and audio towers with tampered metadata, tensors or bytes: loaded, and given pictures or sounds."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import puna
from puna.vision.options import OF_IMAGES, OF_SOUND
from tests.audio.hearing import sound
from tests.fuzz.case import Bounds
from tests.fuzz.invented import Model
from tests.fuzz.tampering import encoded_at_times_damaged, tamper
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import picture

BOUNDS = Bounds(seconds=5.0, memory=256 << 20)

_OF_TOWERS = ("vision.", "audio.", "mm.", "projector_type", "use_gelu", "use_silu")


@dataclass(frozen=True)
class _Perceiving:
    """A model with a tower, in one file or beside it."""

    text: Model
    beside: Model | None
    hears: bool

    @property
    def tower(self) -> Model:
        """A copy of what belongs to the tower."""
        if self.beside is not None:
            return self.beside.copy()
        return Model(
            {key: value for key, value in self.text.keys.items() if _own(key).startswith(_OF_TOWERS)},
            {name: t for name, t in self.text.tensors.items() if name.startswith((*OF_IMAGES, *OF_SOUND))},
        )


def _own(key: str) -> str:
    """Return a key without the architecture's name."""
    return key.partition(".")[2]


def _models() -> list[_Perceiving]:
    """Build every tiny model that sees or hears: before a case's time begins, since it takes seconds."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, models in (("sees", VISION_MODELS), ("hears", HEARING_MODELS)):
            for name, tiny in models.items():
                (place := Path(folder, kind, name)).mkdir(parents=True)
                config = tiny()
                layout = config.write(place, config.build())
                beside = None if layout.projector is None else Model.read(layout.projector)
                found.append(_Perceiving(Model.read(layout.model), beside, kind == "hears"))
    return found


_MODELS = _models()
_KEYS = sorted({_own(key) for model in _MODELS for key in model.tower.keys})
_TENSORS = sorted({name for model in _MODELS for name in model.tower.tensors})


def fuzz(dice: random.Random, folder: Path) -> None:
    model = dice.choice(_MODELS)
    before, tower, text = model.tower, model.tower, model.text
    architecture = (model.beside or text).keys["general.architecture"]
    tamper(dice, tower, [f"{architecture}.{key}" for key in _KEYS], _TENSORS)
    files = {}
    if model.beside is not None:
        files["projector"] = folder / "tower.gguf"
        files["projector"].write_bytes(encoded_at_times_damaged(dice, tower))
    else:
        text = Model(
            {key: value for key, value in text.keys.items() if key not in before.keys} | tower.keys,
            {name: t for name, t in text.tensors.items() if name not in before.tensors} | tower.tensors,
        )
    path = folder / "model.gguf"
    path.write_bytes(text.encode() if files else encoded_at_times_damaged(dice, text))
    os.environ["PUNA_OPS"] = dice.choice(("cpu", "reference"))
    width, height = (dice.choice((1, 30, 80, 300)) for _ in range(2))
    shown = {"audio": [sound(1)]} if model.hears else {"images": [picture(1, width, height)]}
    with puna.load(path, **files, num_ctx=dice.choice((256, 2048)), parallel=1) as loaded:
        loaded.chat([{"role": "user", "content": "what is this?", **shown}], seed=1, num_predict=2)
