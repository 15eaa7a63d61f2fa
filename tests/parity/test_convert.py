"""Converted models beside what llama.cpp's converter makes of the same folder: key by key, tensor by tensor.

The converter comes with the source that `make test-peers` builds llama.cpp from; LLAMA_CPP names another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.convert import convert, convertible
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.model.models.test_decoders import MODELS
from tests.tiny import LLAMA3_ROPE, TinyLlama

SOURCE = Path(os.environ.get("LLAMA_CPP", ".venv-peers/llama.cpp"))
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        not (SOURCE / "convert_hf_to_gguf.py").is_file(), reason="there is no source of llama.cpp"
    ),
]

ALL: dict[str, Any] = {
    "llama": TinyLlama(),
    "llama 3": TinyLlama(tied=True, rope_scaling=LLAMA3_ROPE),
    "mixtral": TinyLlama(experts=4),
    **MODELS,
}
#: What files of ours say beyond theirs, or otherwise, and why is in docs/models-of-your-own.md.
OURS = {
    "tokenizer.ggml.eos_token_ids", "general.name", "expert_weights_norm", "norm_top_k_prob",
    "general.quantization_version", "tokenizer.ggml.pre",
}  # fmt: skip
#: What single architectures say otherwise: what is assumed there is written, and all ends are one list.
APART = {
    "starcoder2": {"attention.sliding_window"}, "deepseek2": {"expert_gating_func"},
    "falcon-h1": {"rope.dimension_count"},
    "hunyuan-dense": {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"},
}  # fmt: skip
#: What theirs alone say: guesses from names of folders, and what has no meaning for the architecture.
THEIRS = (
    "general.size_label", "general.basename", "general.finetune", "general.version", "general.organization",
    "general.tags", "general.languages", "general.license", "general.name", "general.sampling",
)  # fmt: skip

#: Their converter knows a pre-tokenizer by what it makes of a text, for a table of vocabularies.
SCRIPT = """
import sys
sys.path[:0] = [{source!r}, {source!r} + "/gguf-py"]
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
import transformers
transformers.AutoTokenizer = transformers.PreTrainedTokenizerFast  # others add tokens to what is published
import runpy
sys.argv = ["convert", {folder!r}, "--outfile", {out!r}, "--outtype", "f32"]
runpy.run_path({source!r} + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def theirs(folder: Path, out: Path) -> Path:
    script = SCRIPT.format(source=str(SOURCE.resolve()), folder=str(folder), out=str(out))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if not out.is_file():
        pytest.skip(f"llama.cpp's converter fails: {done.stderr.strip().splitlines()[-1:]}")
    return out


def meaning(file: Any) -> dict[str, Any]:
    architecture = file.architecture + "."
    found = {key.removeprefix(architecture): value for key, value in file.metadata.items()}
    return {
        key: _plain(value)
        for key, value in found.items()
        if key not in THEIRS and key not in OURS and key not in APART.get(file.architecture, ())
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("name", [name for name in ALL if "first files" not in name])
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    model = original(ALL[name])
    if type(model).__name__ not in convertible():
        pytest.skip("is not converted")
    folder = saved(tmp_path / "checkpoint", model)
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    with (
        open_gguf(tmp_path / "ours.gguf") as ours,
        open_gguf(theirs(folder, tmp_path / "theirs.gguf")) as other,
    ):
        assert {name: tensor.shape for name, tensor in ours.tensors.items()} == {
            name: tensor.shape for name, tensor in other.tensors.items()
        }
        for tensor in ours.tensors:
            assert ours.tensor(tensor).type is other.tensor(tensor).type, tensor
            np.testing.assert_allclose(ours.array(tensor), other.array(tensor), rtol=1e-6, err_msg=tensor)
        assert meaning(ours) == meaning(other)
        assert ours.architecture == other.architecture
