"""Vision towers of MiniCPM-V, converted by us and by the two converters of llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from puna.convert import convert_tower
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.parity.convert.conversion import PEERS, SOURCE, Lineage, plain, shapes
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.minicpmv import TinyMiniCPMV

pytestmark = PEERS

#: The converter of MiniCPM-V before 4.6, which expects a checkpoint already taken apart.
APART_SCRIPT = "tools/mtmd/legacy-models/minicpmv-convert-image-encoder-to-gguf.py"
#: Keys it writes and no reader needs.
UNREAD = {"clip.has_text_encoder", "clip.has_minicpmv_projector", "general.description"}


@pytest.mark.parametrize("name", ["minicpmv 4.6"])
def test_vision_towers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    Lineage(("minicpm",)).check_vision(name, tmp_path, text=False)


@pytest.mark.parametrize(
    ("version", "audio", "number"),
    [("2.5", False, 2), ("2.6", False, 3), ("2.6", True, 4), ("4.0", False, 5), ("4.5", False, 6),
     ("4.5", True, 100045)],
)  # fmt: skip
def test_resampler_of_minicpmv_is_that_of_llama_cpp(
    version: str, audio: bool, number: int, tmp_path: Path
) -> None:
    tiny = TinyMiniCPMV(TinyLlama(hidden=256), version=version, audio=audio)
    model = original(tiny)
    folder = saved(tmp_path / "checkpoint", model)
    (folder / "preprocessor_config.json").write_text(json.dumps(tiny.pictures))
    assert convert_tower(folder, tmp_path / "ours.gguf", FileType.F32)
    state = model.state_dict()
    for part, prefix, name in (("vpm.", "vpm.", "clip"), ("resampler.", "", "projector")):
        found = {key.removeprefix(prefix): state[key] for key in state if key.startswith(part)}
        torch.save(found, folder / f"minicpmv.{name}")
    wanted = [str(SOURCE / APART_SCRIPT), "-m", str(folder), "--use-f32", "--minicpmv_version", str(number)]
    subprocess.run([sys.executable, *wanted], check=True, capture_output=True)
    with open_gguf(tmp_path / "ours.gguf") as ours, open_gguf(folder / "mmproj-model-f32.gguf") as other:
        assert shapes(ours) == shapes(other)
        for tensor in shapes(ours):
            expected = other.array(tensor).reshape(ours.array(tensor).shape)
            tolerance = {"rtol": 1e-3, "atol": 1e-4} if "patch" in tensor else {"rtol": 1e-5, "atol": 1e-5}
            np.testing.assert_allclose(ours.array(tensor), expected, **tolerance, err_msg=tensor)
        said = {key: plain(value) for key, value in other.metadata.items() if key not in UNREAD}
        assert said.items() <= {key: plain(value) for key, value in ours.metadata.items()}.items()
