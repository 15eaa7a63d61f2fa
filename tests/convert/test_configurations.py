"""A model of whatever configuration computes in our engine what it does in transformers, or is refused.

A draw is a tiny random model of an architecture's valid settings with a few fields changed; it is saved,
converted, loaded and compared. One that transformers itself refuses shows nothing and is left out.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.convert import convert
from puna.convert.registry import convertible
from puna.errors import ConversionError
from puna.gguf import FileType
from puna.model.load import LoadedModel, load_model
from tests import forward
from tests.convert.checkpoints import save_tokenizer
from tests.convert.configurations import (
    ELSEWHERE,
    FAMILIES,
    FIXED,
    VALUES,
    WITHOUT_EFFECT,
    Drawn,
    draw,
    fields_of,
    text_base_of,
)
from tests.model.models.parity import FLOATS
from tests.tiny_words import VOCABULARY, save_words

#: Of each architecture in `make test-thorough`.
DRAWS = int(os.environ.get("PUNA_DRAWS", "2000"))
#: More than the windows and the original contexts that are drawn.
LENGTH = 40
#: The first tokens that are no padding, whose positions some encoders count otherwise.
_SPECIAL = 3
EQUAL, REFUSED, LEFT_OUT = "equal", "refused", "left out"


class WrongError(AssertionError):
    """A draw that is neither computed as in transformers nor refused."""


def build(drawn: Drawn) -> Any:
    """The model in float32, with weights in which every part shows."""
    import transformers

    kind = getattr(transformers, drawn.architecture)
    config = kind.config_class.from_dict(drawn.settings)
    torch.manual_seed(drawn.seed)
    model = kind._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("bias") or (values.ndim == 1 and isinstance(values, torch.nn.Parameter)):
                # Around where they begin: 1 for norms, 0 for those to which 1 is added.
                values.add_(0.3 * torch.randn_like(values))
            elif isinstance(values, torch.nn.Parameter):
                inputs = values.shape[-1] if values.ndim < 4 else values[0].numel()
                values.copy_(torch.randn_like(values) / inputs**0.5)
    return model


def expected(drawn: Drawn, model: Any, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        by = FAMILIES[drawn.architecture].by
        if by == "logits":
            return torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0], dim=-1)
        if by == "answers":
            return torch.log_softmax(
                model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits[0], dim=-1
            )
        body = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
        return body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


def found(drawn: Drawn, ours: LoadedModel, tokens: list[int]) -> torch.Tensor:
    count = len(tokens)
    cache = ours.make_cache(sequences=1, context=count, types=FLOATS)
    batch = Batch.of(tokens, list(range(count)), [0] * count, list(range(count)))
    with torch.inference_mode():
        if FAMILIES[drawn.architecture].by == "answers":
            (prompt,) = ours.model.inputs(tokens)
            batch.payloads = [(0, prompt.payload)]
        cache.start_forward(batch)
        if FAMILIES[drawn.architecture].by != "states":
            return torch.log_softmax(forward.logits_of(ours.model, batch, cache), dim=-1)
        return forward.states_of(ours.model, batch, cache)


def save(drawn: Drawn, model: Any, folder: Path) -> None:
    """The model as it is published."""
    model.save_pretrained(folder)
    if not drawn.saved:
        (folder / "config.json").write_text(json.dumps(drawn.settings))
    words = text_base_of(drawn.architecture)["vocab_size"] == len(VOCABULARY)
    if words:
        save_words(folder)
    else:
        save_tokenizer(folder, markers=["<|image|>"] if FAMILIES[drawn.architecture].whole else [])


def outcome(drawn: Drawn) -> str:
    """EQUAL, REFUSED or LEFT_OUT. Raises WrongError."""
    generator = torch.Generator().manual_seed(drawn.seed)
    size = text_base_of(drawn.architecture)["vocab_size"]
    tokens = torch.randint(_SPECIAL, size, (LENGTH,), generator=generator).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = build(drawn)
                theirs = expected(drawn, model, tokens)
                save(drawn, model, folder)
            except Exception:  # whatever transformers makes of settings that it does not know
                return LEFT_OUT
        if not theirs.isfinite().all():
            return LEFT_OUT
        try:
            convert(folder, folder / "model.gguf", FileType.F32)
        except ConversionError:
            return REFUSED
        except Exception as error:
            raise WrongError(f"converting ends with {error!r}") from error
        try:
            ours = load_model(folder / "model.gguf")
            mine = found(drawn, ours, tokens)
        except Exception as error:
            raise WrongError(f"the file cannot be computed: {error!r}"[:400]) from error
    size = min(theirs.shape[-1], mine.shape[-1])
    difference = float((mine[:, :size] - theirs[:, :size]).abs().max())
    if not difference < 1e-3:
        raise WrongError(f"differs by {difference:.3g}")
    return EQUAL


def smallest(drawn: Drawn) -> tuple[Drawn, str]:
    """The least of its changes with which a draw is still wrong, and how it is."""
    message = ""
    try:
        outcome(drawn)
    except WrongError as error:
        message = str(error)
    for name in drawn.changes:
        if name not in drawn.changes or len(drawn.changes) == 1:
            continue
        try:
            outcome(drawn.without(name))
        except WrongError as error:
            drawn, message = drawn.without(name), str(error)
    return drawn, message


def check(architecture: str, count: int, *, at_most: int = 20) -> Counter[str]:
    """Draw `count` configurations; returns how many had which outcome. Fails if one is wrong."""
    outcomes: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    for seed in range(count):
        drawn = draw(architecture, seed)
        try:
            outcomes[outcome(drawn)] += 1
        except WrongError:
            least, message = smallest(drawn)
            wrong.setdefault(", ".join(least.changes), f"{least}: {message}")
            if len(wrong) == at_most:
                break
    assert not wrong, "\n".join(wrong.values())
    return outcomes


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """transformers warns of most settings that are drawn, and shows how it saves a file of some kilobytes."""
    import transformers

    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_few_configurations_are_computed_as_transformers_does_or_refused(architecture: str) -> None:
    check(architecture, 3)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_many_configurations_are_computed_as_transformers_does_or_refused(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    outcomes = check(architecture, DRAWS)
    record_property("outcomes", dict(outcomes))
    print(f"{architecture}: {dict(outcomes)}")  # shown by -rP
    assert outcomes[EQUAL] >= 0.3 * DRAWS, outcomes  # else the draws would show little


def test_every_text_model_that_can_be_converted_is_drawn() -> None:
    assert {*FAMILIES} | ELSEWHERE == {*convertible()}
    assert not {*FAMILIES} & ELSEWHERE


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_field_is_drawn_or_known_not_to_matter(architecture: str) -> None:
    """A release of transformers may add some."""
    known = {*VALUES, *FAMILIES[architecture].values, *WITHOUT_EFFECT, *FIXED}
    assert {*fields_of(architecture)} - known == set()
