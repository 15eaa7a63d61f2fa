"""EAGLE-3 heads in llama.cpp: the same files of both converters, and the same log-probabilities.

Run by `make test-peers`, which builds llama-cpp-python.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from puna.batch import KeptStates
from puna.convert import convert
from puna.gguf import FileType
from puna.model.load import LoadSettings, load_model
from puna.model.models.eagle3 import Eagle3
from tests.convert.checkpoints import save_tokenizer, saved
from tests.model.models.heads import head_results
from tests.model.models.parity import original, random_tokens
from tests.model.models.test_eagle3 import every
from tests.parity.convert.conversion import PEERS, Lineage, theirs
from tests.tiny.decoders import QWEN2
from tests.tiny.eagle import EAGLES, TinyEagle3, eagle3_files
from tests.tiny.llama import TinyLlama

pytestmark = PEERS

#: Settings of YaRN that llama.cpp does not read for this architecture.
_UNREAD = ("beta_fast", "beta_slow")


def carried(tiny: TinyEagle3) -> TinyEagle3:
    """Return the head as llama.cpp can have it: it keeps inputs of layers, of some architectures."""
    settings = dict(tiny.settings)
    if rope := settings.get("rope_parameters"):
        settings["rope_parameters"] = {name: value for name, value in rope.items() if name not in _UNREAD}
    first, second, third = (min(layer, 4) for layer in tiny.layers)
    target = TinyLlama(layers=5) if tiny.target is QWEN2 else tiny.target
    return dataclasses.replace(tiny, settings=settings, layers=(first, second, third), target=target)


HEADS = {name: carried(tiny) for name, tiny in EAGLES.items() if "biases" not in name and "gemma" not in name}
LINEAGE = Lineage(())


@pytest.mark.parametrize("name", HEADS)
def test_log_probabilities_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")
    peer = importlib.import_module("tests.parity.llama_cpp_head")
    target, path = eagle3_files(tmp_path, HEADS[name])
    ours, head = load_model(target), load_model(path, LoadSettings(drafts=True)).model
    assert isinstance(head, Eagle3)
    head.attach(ours.model)
    text = random_tokens(ours, 40, 7)
    kept = KeptStates(ours.ops, 128, head.state_size, inputs_of=head.target_layers, fuse=head.fuse)
    [(_, logits)] = head_results(ours, head, kept, text, [40])
    found = every(head, logits).log_softmax(-1)
    known = peer.head_log_probabilities(target, path, HEADS[name].layers, text)
    inside = known.isfinite()
    assert (inside == found.isfinite()).all()
    assert (found[inside] - known[inside]).abs().max() < 1e-3


@pytest.mark.parametrize("name", HEADS)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    target = saved(tmp_path / "target", original(HEADS[name].target))
    checkpoint = HEADS[name].save(tmp_path / "head")
    save_tokenizer(checkpoint)  # where theirs reads it in these tests
    convert(checkpoint, tmp_path / "ours.gguf", FileType.F32, target_model=target)
    other = theirs(checkpoint, tmp_path / "theirs.gguf", "--target-model-dir", str(target))
    LINEAGE.check_same(tmp_path / "ours.gguf", other)
