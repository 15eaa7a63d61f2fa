"""EAGLE-3 heads compute what their published formula and llama.cpp do, and refuse unfit targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch, KeptStates
from puna.errors import ModelError, RequestError, UnsupportedModelError
from puna.gguf import GGMLType, open_gguf
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.model.memory import Forecast
from puna.model.models.eagle3 import Eagle3
from puna.ops import Backend
from tests.model.models.expected import expected
from tests.model.models.heads import head_results
from tests.model.models.parity import FLOATS, check_close, random_tokens
from tests.tiny.converted import contents_of
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.eagle import EAGLES, VOCABULARY, Eagle3Reference, eagle3_files
from tests.tiny.gemmas import TinyGemma3n
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

DRAFTS = LoadSettings(drafts=True)
PLAIN = EAGLES["part of the vocabulary"]


def pair(folder: Path, tiny: Any, ops: Backend | None = None) -> tuple[LoadedModel, LoadedModel, Eagle3]:
    """Return a target, its head, and the head's network, attached to the target."""
    target, head = eagle3_files(folder, tiny)
    ours = load_model(head, DRAFTS, ops=ops)
    loaded = load_model(target, ops=ops)
    assert isinstance(ours.model, Eagle3)
    ours.model.attach(loaded.model)
    return loaded, ours, ours.model


def kept_for(target: LoadedModel, head: Eagle3) -> KeptStates:
    return KeptStates(target.ops, 128, head.state_size, inputs_of=head.target_layers, fuse=head.fuse)


def every(head: Eagle3, logits: np.ndarray) -> torch.Tensor:
    """Return the logits [rows, vocab] of all tokens, -inf where the head has none."""
    found = torch.full((len(logits), VOCABULARY), -torch.inf)
    found[:, slice(None) if head.tokens is None else head.tokens] = torch.from_numpy(logits.copy())
    return found


@pytest.mark.parametrize("name", EAGLES)
def test_states_and_logits_match_the_published_formula(tmp_path: Path, name: str, ops: Backend) -> None:
    target, ours, head = pair(tmp_path, EAGLES[name], ops)
    reference, tokens = Eagle3Reference(EAGLES[name]), random_tokens(target, 40, 5)
    states = reference.read(tokens)
    made, logits = reference.look_ahead(states[:-1], tokens[1:])
    for parts in ([40], [15, 1, 24]):
        [(found, said)] = head_results(target, head, kept_for(target, head), tokens, parts)
        assert np.abs(found - made.numpy()).max() < 1e-4
        mine, theirs = (torch.log_softmax(each, -1) for each in (every(head, said), logits))
        inside = theirs.isfinite()
        assert inside.sum(1).tolist() == [EAGLES[name].draft_vocabulary or VOCABULARY] * 39
        check_close(ours, mine[inside], theirs[inside])


def test_a_draft_continues_from_the_state_of_the_one_before(tmp_path: Path) -> None:
    target, _, head = pair(tmp_path, PLAIN)
    reference, tokens = Eagle3Reference(PLAIN), random_tokens(target, 12, 6)
    kept, ops = kept_for(target, head), target.ops
    assert isinstance(target.model, Decoder)
    cache = target.make_cache(sequences=1, context=64, types=FLOATS)
    batch = Batch.of(tokens[:-1], list(range(11)), [0] * 11, [10])
    cache.start_forward(batch)
    target.model.forward(batch.on(ops, kept), cache)
    number, states = target.model.options.block_count, kept.read(11)
    text, found = tokens[1:], []
    for depth in range(4):
        rows = text if depth == 0 else text[-1:]
        begin = len(text) - len(rows) + 1
        side = Batch.of(rows, list(range(begin, begin + len(rows))), [0] * len(rows), [len(rows) - 1])
        cache.start_side_pass(number, side, first=1)
        made = head.look_ahead(0, ops.array(states), side.on(ops), cache)
        best = int(every(head, ops.numpy(head.head_logits(0, made)))[0].argmax())
        found.append(best)
        text, states = [*text, best], ops.numpy(made)
    cache.end_side_passes()
    assert found == reference.drafts(tokens, 4)
    assert cache.length(0) == 11


def test_keys_move_with_those_of_the_target(tmp_path: Path) -> None:
    target, _, head = pair(tmp_path, PLAIN)
    tokens, kept, ops = random_tokens(target, 31, 8), kept_for(target, head), target.ops
    assert isinstance(target.model, Decoder)
    cache, number = target.make_cache(sequences=1, context=64, types=FLOATS), target.model.options.block_count
    batch = Batch.of(tokens[:30], list(range(30)), [0] * 30, [29])
    cache.start_forward(batch)
    target.model.forward(batch.on(ops, kept), cache)
    states = kept.read(30)
    side = Batch.of(tokens[1:30], list(range(1, 30)), [0] * 29, [28])
    cache.start_side_pass(number, side, first=1)
    head.look_ahead(0, ops.array(states[:29]), side.on(ops), cache)
    cache.end_side_passes()
    cache.remove(0, 5, 15)
    last = Batch.of(tokens[30:], [20], [0], [0])
    cache.start_side_pass(number, last, first=1)
    made = head.look_ahead(0, ops.array(states[29:]), last.on(ops), cache)
    left = [*range(4), *range(14, 30)]  # states whose rows are left
    expected, _ = Eagle3Reference(PLAIN).look_ahead(
        torch.from_numpy(states[left]), [tokens[row + 1] for row in left]
    )
    assert np.abs(ops.numpy(made)[0] - expected[-1].numpy()).max() < 1e-4


def test_log_probabilities_are_those_of_llama_cpp(tmp_path: Path) -> None:
    target, ours, head = pair(tmp_path, PLAIN)
    known = expected("eagle3")
    [(_, logits)] = head_results(target, head, kept_for(target, head), known.text, [len(known.text)])
    found = torch.log_softmax(every(head, logits), -1)[:, known.tokens]
    check_close(ours, found, known.log_probabilities)


def test_keys_and_tensors_are_those_of_llama_cpp(tmp_path: Path) -> None:
    _, path = eagle3_files(tmp_path, EAGLES["speculators, norms first"])
    with open_gguf(path) as file:
        assert file.architecture == "eagle3"
        assert file.get("target_hidden_size") == 64
        assert list(file.get("target_layers")) == [0, 5, 2]
        assert file.get("norm_before_residual") is True
        assert file.get("norm_before_fc") is True
        assert file.tensors["d2t"].type is GGMLType.I64
        assert {"fc.weight", "enc.output_norm.weight", "blk.0.attn_norm_2.weight"} <= {*file.tensors}
        assert file.array("d2t").max() > 90
        assert (np.diff(file.array("d2t")) > 0).all()


def test_a_head_alone_is_refused(tmp_path: Path) -> None:
    _, head = eagle3_files(tmp_path, PLAIN)
    with pytest.raises(UnsupportedModelError, match="only drafts for another model"):
        load_model(head)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (TinyLlama(hidden=48), "hidden size is 48, and the head reads states of 64"),
        (TinyLlama(layers=2), "has 2 layers, and the head reads layer 3"),
    ],
    ids=["size", "layers"],
)
def test_other_targets_are_refused(tmp_path: Path, target: TinyLlama, message: str) -> None:
    _, path = eagle3_files(tmp_path, PLAIN)
    head = load_model(path, DRAFTS).model
    assert isinstance(head, Eagle3)
    with pytest.raises(RequestError, match=message):
        head.attach(load_model(tiny_llama_gguf(tmp_path / "other.gguf", target)).model)


def test_models_whose_layers_cannot_be_read_are_refused(tmp_path: Path) -> None:
    _, path = eagle3_files(tmp_path, PLAIN)
    head = load_model(path, DRAFTS).model
    assert isinstance(head, Eagle3)
    other = load_model(tiny_decoder_gguf(tmp_path / "other.gguf", TinyGemma3n()))
    with pytest.raises(RequestError, match="its layers cannot be read"):
        head.attach(other.model)


def test_a_head_without_tables_needs_a_target_of_its_size(tmp_path: Path) -> None:
    _, path = eagle3_files(tmp_path, PLAIN)
    contents = contents_of(path)
    del contents.tensors["token_embd.weight"]
    head = load_model(contents.write(tmp_path / "bare.gguf"), DRAFTS).model
    assert isinstance(head, Eagle3)
    target = load_model(tmp_path / "target.gguf")
    with pytest.raises(RequestError, match="which uses its embeddings or output, is 48"):
        head.attach(target.model)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target_layers": None}, "'eagle3.target_layers' is missing"),
        ({"target_layers": [1, 2]}, "'eagle3.target_layers' should be 3 layers"),
        ({"target_layers": [1, -2, 3]}, "'eagle3.target_layers' should be 3 layers"),
        ({"target_layers": 3}, "'eagle3.target_layers' should be 3 layers"),
        ({"target_hidden_size": None}, "'eagle3.target_hidden_size' is missing"),
        ({"target_hidden_size": 60}, r"tensor 'fc.weight' has 48x192 values, expected 48x180"),
        ({"norm_before_fc": True}, "'enc.output_norm.weight' is missing"),
        ({"norm_before_residual": 1}, "should be true or false"),
    ],
)
def test_unfit_settings_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    _, path = eagle3_files(tmp_path, PLAIN)
    contents = contents_of(path)
    contents.set(keys)
    with pytest.raises(ModelError, match=message):
        load_model(contents.write(tmp_path / "changed.gguf"), DRAFTS)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"enc.output_norm.weight": np.ones(192)}, "'enc.output_norm.weight' is not used"),
        ({"d2t": np.arange(100) + VOCABULARY - 99}, "'d2t' has tokens outside the vocabulary"),
        ({"d2t": np.arange(100) - 1}, "'d2t' has tokens outside the vocabulary"),
        ({"d2t": np.arange(99)}, "'d2t' has 99 values, expected 100"),
        ({"d2t": None}, "there is no tensor 'd2t'"),
        ({"output.weight": None}, "'d2t' has 100 values, expected 0"),
        ({"blk.0.attn_q_norm.weight": np.ones(12)}, "unknown for eagle3"),
        ({"blk.1.attn_norm.weight": np.ones(48)}, "there are tensors of layer 1"),
    ],
)
def test_unfit_tensors_are_refused(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    _, path = eagle3_files(tmp_path, PLAIN)
    contents = contents_of(path)
    merged = contents.tensors | tensors
    contents.tensors = {name: array for name, array in merged.items() if array is not None}
    with pytest.raises(ModelError, match=message):
        load_model(contents.write(tmp_path / "changed.gguf"), DRAFTS)


def test_a_head_counts_towards_memory_for_any_context_of_its_target(tmp_path: Path) -> None:
    """Its own context is that of its training."""
    _, path = eagle3_files(tmp_path, PLAIN)
    with open_gguf(path) as file:
        needs = Forecast(file, FLOATS)
    short, long = (needs.table(context=context, parallel=1, batch=8).cache for context in (128, 1024))
    assert long == 8 * short == 1024 * 2 * 3 * 12 * 4
    features = needs.table(context=64, parallel=1, batch=64).activations
    assert features > 64 * 3 * 64 * 4
