"""Audio towers whose files were changed, so that they cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from puna.errors import ModelError
from puna.model.load import load_model
from tests.tiny.converted import contents_of
from tests.tiny.vision.common import Layout


def check_refused(
    layout: Layout, keys: Mapping[str, Any], tensors: Mapping[str, np.ndarray | None], complaint: str
) -> None:
    """Check that a tower with other keys and tensors (None: left out) is refused with a complaint."""
    assert layout.projector is not None
    found = contents_of(layout.projector)
    found.set(keys)
    changed = found.tensors | dict(tensors)
    found.tensors = {each: values for each, values in changed.items() if values is not None}
    with pytest.raises(ModelError, match=complaint):
        load_model(layout.model, projector=found.write(layout.projector.with_name("changed.gguf")))
