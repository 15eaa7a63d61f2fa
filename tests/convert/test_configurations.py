"""A model of any configuration computes the same in our engine as in transformers, or is refused.

Each draw is a tiny random model with an architecture's valid settings, a few of them changed; it is saved,
converted, loaded and compared. Draws that transformers itself rejects prove nothing and are left out.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from puna.batch import Batch, Image, ImagePart
from puna.convert import convert
from puna.convert.registry import convertible
from puna.errors import ConversionError
from puna.gguf import FileType
from puna.model.load import LoadedModel, load_model
from tests.convert.checkpoints import save_tokenizer
from tests.convert.configurations import (
    ABSENT,
    ELSEWHERE,
    FAMILIES,
    FIXED,
    LAYERS,
    MISTRAL_YARN,
    OUTSIDE,
    VALUES,
    WITHOUT_EFFECT,
    Drawn,
    draw,
    fields_of,
    text_base_of,
)
from tests.model.models.parity import FLOATS
from tests.tiny import forward
from tests.tiny.words import VOCABULARY, save_words

#: Draws of each architecture in `make test-thorough`.
DRAWS = int(os.environ.get("PUNA_DRAWS", "2000"))
#: Tokens of a text: more than the windows and original contexts drawn.
LENGTH = 40
#: The first token id that is not special: some encoders count positions of padding differently.
_SPECIAL = 3
#: Folder of the files, in memory so that no draw waits for a disk.
MEMORY = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)
EQUAL, REFUSED, LEFT_OUT, ROUNDING = "equal", "refused", "left out", "rounding"
#: Largest difference of equal results, and of rounding, which may exceed it in a few rows.
_CLOSE, _MAX_ROUNDING = 1e-3, 0.02


class WrongError(AssertionError):
    """A draw neither computed as in transformers nor refused."""


def build(drawn: Drawn) -> Any:
    """Return the model in float32, with weights that make every part affect the result."""
    import transformers

    kind = getattr(transformers, drawn.architecture)
    config = kind.config_class.from_dict(drawn.settings)
    torch.default_generator.manual_seed(drawn.seed)
    model = kind._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if not values.is_floating_point():
                continue
            if name.endswith("bias") or (values.ndim == 1 and isinstance(values, torch.nn.Parameter)):
                # Around their initial values: 1 for norms, or 0 for norms that add 1.
                values.add_(0.3 * torch.randn_like(values))
            elif isinstance(values, torch.nn.Parameter):
                inputs = values.shape[-1] if values.ndim < 4 else values[0].numel()
                values.copy_(torch.randn_like(values) / inputs**0.5)
    return model


def heard(drawn: Drawn, frames: int, bands: int) -> NDArray[np.float32]:
    """Return the features [frames, bands] of a recording."""
    return np.random.default_rng(drawn.seed).normal(0, 1, (frames, bands)).astype(np.float32)


def reference_results(drawn: Drawn, model: Any, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        by = FAMILIES[drawn.architecture].by
        if by == "logits":
            return torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0], dim=-1)
        if by == "answers":
            return torch.log_softmax(
                model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits[0], dim=-1
            )
        if by == "recordings":
            config = model.config
            features = torch.tensor(heard(drawn, 2 * config.max_source_positions, config.num_mel_bins).T)
            logits = model(input_features=features[None], decoder_input_ids=ids, use_cache=False).logits
            return torch.log_softmax(logits[0], dim=-1)
        body = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
        return body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


def our_results(drawn: Drawn, ours: LoadedModel, tokens: list[int]) -> torch.Tensor:
    count = len(tokens)
    cache = ours.make_cache(sequences=1, context=count, types=FLOATS)
    batch = Batch.of(tokens, list(range(count)), [0] * count, list(range(count)))
    with torch.inference_mode():
        if FAMILIES[drawn.architecture].by == "answers":
            (prompt,) = ours.model.inputs(tokens)
            batch.payloads = [(0, prompt.payload)]
        if (tower := ours.speech_encoder) is not None:
            features = heard(drawn, tower.options.frames, tower.options.bands)
            image = Image(1, features, tower.options.positions, forward.encoded(ours, features))
            batch.payloads = [(0, ImagePart(image, 0, image.rows))]
        cache.start_forward(batch)
        if FAMILIES[drawn.architecture].by != "states":
            return torch.log_softmax(forward.logits_of(ours.model, batch, cache), dim=-1)
        return forward.states_of(ours.model, batch, cache)


def save(drawn: Drawn, model: Any, folder: Path) -> None:
    """Save the model as it would be published."""
    model.save_pretrained(folder)
    if not drawn.saved:
        (folder / "config.json").write_text(json.dumps(drawn.settings))
    words = text_base_of(drawn.architecture)["vocab_size"] == len(VOCABULARY)
    for name, text in vocabulary_files(words, bool(FAMILIES[drawn.architecture].whole)).items():
        (folder / name).write_bytes(text)


@cache
def vocabulary_files(words: bool, vision: bool) -> dict[str, bytes]:
    """Return the files of a tokenizer, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if words:
            save_words(folder)
        else:
            save_tokenizer(folder, markers=["<|image|>"] if vision else [])
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def moved_by_rounding(drawn: Drawn, model: Any, tokens: list[int], theirs: torch.Tensor) -> torch.Tensor:
    """Return how far each row of transformers' results moves when weights are rounded differently.

    Changes the weights of `model`.
    """
    moved = torch.zeros(len(theirs))
    for _ in range(4):
        with torch.no_grad():
            for values in model.parameters():
                values.mul_(1 + 1e-7 * torch.randn_like(values))
        moved = moved.maximum((reference_results(drawn, model, tokens) - theirs).abs().amax(-1))
    return moved


def is_rounding(off: torch.Tensor, moved: torch.Tensor) -> bool:
    """Return whether rows differ by no more than rounding explains.

    The first states of delta networks are almost zero before normalisation, so a difference in the last bit
    grows to thousandths. A router may rate two experts equally; then a few rows differ by any amount.
    """
    few = int((off > _MAX_ROUNDING).sum()) <= len(off) // 4
    return few and bool((off < (4 * moved).clamp(min=_CLOSE)).all())


def outcome_of(drawn: Drawn) -> str:
    """Return EQUAL, REFUSED, LEFT_OUT or ROUNDING. Raises WrongError."""
    generator = torch.Generator().manual_seed(drawn.seed)
    size = text_base_of(drawn.architecture)["vocab_size"]
    tokens = torch.randint(_SPECIAL, size, (LENGTH,), generator=generator).tolist()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name) / "tiny"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = build(drawn)
                theirs = reference_results(drawn, model, tokens)
                save(drawn, model, folder)
            except Exception:  # transformers may raise anything for settings it does not support
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
            mine = our_results(drawn, ours, tokens)
        except Exception as error:
            raise WrongError(f"the file cannot be computed: {error!r}"[:400]) from error
    size = min(theirs.shape[-1], mine.shape[-1])
    off = (mine[:, :size] - theirs[:, :size]).abs().amax(-1)
    if not bool((off < _CLOSE).all()):
        if is_rounding(off, moved_by_rounding(drawn, model, tokens, theirs)):
            return ROUNDING
        raise WrongError(f"differs by {float(off.max()):.3g}")
    return EQUAL


def minimise(drawn: Drawn) -> tuple[Drawn, str]:
    """Return `drawn` with the fewest changes that still go wrong, and the message."""
    message = ""
    try:
        outcome_of(drawn)
    except WrongError as error:
        message = str(error)
    for name in drawn.changes:
        if name not in drawn.changes or len(drawn.changes) == 1:
            continue
        try:
            outcome_of(drawn.without(name))
        except WrongError as error:
            drawn, message = drawn.without(name), str(error)
    return drawn, message


def check(architecture: str, count: int, *, at_most: int = 20) -> Counter[str]:
    """Draw `count` configurations and return the number of each outcome. Fails if one is wrong."""
    outcomes: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    for seed in range(count):
        drawn = draw(architecture, seed)
        try:
            outcomes[outcome_of(drawn)] += 1
        except WrongError:
            least, message = minimise(drawn)
            wrong.setdefault(", ".join(least.changes), f"{least}: {message}")
            if len(wrong) == at_most:
                break
    assert not wrong, "\n".join(wrong.values())
    return outcomes


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence transformers, which warns of most settings drawn and shows progress while saving tiny files."""
    import transformers

    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: several threads only wait for each other
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


_UNSET: dict[str, Any] = {"rope_parameters": ABSENT, "rope_scaling": ABSENT, "rope_theta": ABSENT}
_OLD_LINEAR: dict[str, Any] = {**_UNSET, "rope_scaling": {"type": "linear", "factor": 2.0}}
_NO_BASE = {name: value for name, value in MISTRAL_YARN.items() if name != "rope_theta"}
#: Changes that were once lost or misread, with the right outcome.
FOUND: Sequence[tuple[str, dict[str, Any], str]] = (
    *(
        (architecture, _UNSET, EQUAL)
        for architecture in (
            "Gemma4ForCausalLM",
            "Mistral4ForCausalLM",
            "Ministral3ForCausalLM",
            "Mistral3ForConditionalGeneration",
            "MllamaForConditionalGeneration",
        )
    ),
    *(
        (architecture, {**_UNSET, "rope_parameters": _NO_BASE}, EQUAL)
        for architecture in ("Mistral4ForCausalLM", "Ministral3ForCausalLM")
    ),
    ("MiMoV2FlashForCausalLM", {**_UNSET, "head_dim": 12}, EQUAL),
    ("MiMoV2FlashForCausalLM", _UNSET, REFUSED),  # would rotate five dimensions of a head
    ("Qwen3VLForConditionalGeneration", _UNSET, REFUSED),  # the default axes divide 64 pairs
    ("Qwen3VLMoeForConditionalGeneration", _UNSET, REFUSED),
    ("KimiLinearForCausalLM", {"linear_num_heads": ABSENT}, REFUSED),
    ("Gemma3ForCausalLM", _OLD_LINEAR, REFUSED),
    ("Gemma3ForConditionalGeneration", {"final_logit_softcapping": 5.0}, REFUSED),
    ("Gemma3nForCausalLM", _OLD_LINEAR, REFUSED),
    ("Olmo3ForCausalLM", {**_UNSET, "rope_theta": 50.0}, REFUSED),
    ("ModernBertModel", {**_UNSET, "rope_theta": 50.0}, REFUSED),
    ("GraniteMoeHybridForCausalLM", {"layer_types": ABSENT}, REFUSED),
    ("Qwen3_5ForCausalLM", {"num_key_value_heads": ABSENT}, EQUAL),
    ("DeepseekV2ForCausalLM", {"q_lora_rank": ABSENT}, EQUAL),
    ("Glm4MoeLiteForCausalLM", {"first_k_dense_replace": ABSENT}, EQUAL),
    ("Glm4MoeLiteForCausalLM", {"first_k_dense_replace": 2}, REFUSED),  # transformers does not read it
    ("Ernie4_5_MoeForCausalLM", {"moe_layer_start_index": ABSENT}, EQUAL),
    ("Mistral4ForCausalLM", {"scoring_func": "sigmoid"}, REFUSED),
    ("Mistral3ForConditionalGeneration", {"rms_norm_eps": ABSENT}, EQUAL),
    ("Gemma3nForCausalLM", {"hidden_size_per_layer_input": ABSENT}, EQUAL),
    ("Gemma4ForCausalLM", {"hidden_size_per_layer_input": 8, "vocab_size": 292}, EQUAL),
    (
        "Gemma4ForCausalLM",
        {
            "hidden_size_per_layer_input": 8, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
        REFUSED,
    ),
    ("MixtralForCausalLM", {"num_experts_per_tok": ABSENT}, REFUSED),
    ("MiMoV2FlashForCausalLM", {"num_experts_per_tok": 3, "n_group": 3}, REFUSED),
    ("DeepseekV3ForCausalLM", {"first_k_dense_replace": 3, "n_group": ABSENT}, REFUSED),
    ("SmolLM3ForCausalLM", {
        "rope_theta": ABSENT, "rope_scaling": ABSENT, "rope_parameters": {
            "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }, EQUAL),
    ("NemotronHForCausalLM", {"n_group": 3, "topk_group": ABSENT}, EQUAL),
    ("MambaForCausalLM", {"state_size": ABSENT}, REFUSED),
    ("FalconMambaForCausalLM", {"mixer_rms_eps": 0.1, "layer_norm_epsilon": 0.1}, REFUSED),
    (
        "Phi3ForCausalLM",
        {
            **_UNSET,
            "rope_scaling": {
                "type": "longrope", "short_factor": [1.5] * 8, "long_factor": [3.0] * 8,
                "original_max_position_embeddings": 64,
            },
        },
        REFUSED,  # it is 16 outside the rotation
    ),
    ("Exaone4ForCausalLM", {"sliding_window_pattern": 1}, REFUSED),
    ("Llama4ForConditionalGeneration", {f"{OUTSIDE}tie_word_embeddings": True}, EQUAL),  # nothing reads it
    ("MllamaForConditionalGeneration", {f"{OUTSIDE}tie_word_embeddings": True}, REFUSED),
    ("Llama4ForCausalLM", {"no_rope_layer_interval": 1, "layer_types": ["full_attention"] * LAYERS}, EQUAL),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "changes", "expected"), FOUND)
def test_formerly_misread_configurations_have_the_right_outcome(
    architecture: str, changes: dict[str, Any], expected: str
) -> None:
    assert outcome_of(Drawn(architecture, 1, changes, saved=False)) == expected


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_few_random_configurations_match_transformers_or_are_refused(architecture: str, count: int) -> None:
    check(architecture, count)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_many_random_configurations_match_transformers_or_are_refused(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    outcomes = check(architecture, DRAWS)
    record_property("outcomes", dict(outcomes))
    print(f"{architecture}: {dict(outcomes)}")  # shown by -rP
    assert outcomes[EQUAL] >= 0.3 * DRAWS, outcomes  # otherwise the draws prove little


def test_every_convertible_text_model_is_drawn() -> None:
    assert {*FAMILIES} | ELSEWHERE == {*convertible()}
    assert not {*FAMILIES} & ELSEWHERE


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_config_field_is_drawn_or_known_to_have_no_effect(architecture: str) -> None:
    """A release of transformers may add fields."""
    known = {*VALUES, *FAMILIES[architecture].values, *WITHOUT_EFFECT, *FIXED}
    assert {*fields_of(architecture)} - known == set()
