"""The tests' MobileNet V5 against timm's, where timm is installed."""

from __future__ import annotations

import pytest
import torch

from tests.tiny.vision.common import randomise
from tests.tiny.vision.mobilenet import STAGES, STEM, MobileNetV5


def test_the_reference_matches_timm() -> None:
    mobilenetv5 = pytest.importorskip(
        "timm.models.mobilenetv5", reason="timm is not installed: pip install timm"
    )
    from timm.models._efficientnet_builder import decode_arch_def

    ours = randomise(MobileNetV5(2, out=2048), 0)  # timm's width is fixed
    theirs = mobilenetv5.MobileNetV5Encoder(
        decode_arch_def(STAGES), stem_size=STEM, pad_type="same",
        msfa_output_resolution=2, layer_scale_init_value=1e-5,
    ).eval()  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    pixels = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(pixels), theirs(pixels), rtol=1e-4, atol=1e-4)
