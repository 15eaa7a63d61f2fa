"""Bodies of llama.cpp's server, as its README documents them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from puna.errors import PunaError, RequestError
from puna.grammar.format import Format
from puna.protocol import Excerpt, Infill, Mixed, Prompt
from puna.server.http.bodies import parse
from puna.server.jobs.jobs import GenerationSpec
from puna.server.jobs.service import Service
from puna.server.llamaserver.wire import CompletionBody, InfillBody, prompts_of, wanted_model


def completion(**fields: Any) -> GenerationSpec:
    return parse(json.dumps({"prompt": "hi", **fields}).encode(), CompletionBody).spec("m")


def infill(**fields: Any) -> GenerationSpec:
    body = {"input_prefix": "a", "input_suffix": "b", **fields}
    return parse(json.dumps(body).encode(), InfillBody).spec("m")


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("string", ["string"]),
        ([12, 34, 56], [[12, 34, 56]]),
        ([12, 34, "string", 56, 78], [Mixed([[12, 34], "string", [56, 78]])]),
        (["string1", "string2"], ["string1", "string2"]),
        (["string1", [12, 34, 56]], ["string1", [12, 34, 56]]),
        ([[12, "string", 56], "b"], [Mixed([[12], "string", [56]]), "b"]),
        ({"prompt_string": "string"}, ["string"]),
        ([{"prompt_string": "a"}, "b"], ["a", "b"]),
    ],
)
def test_prompts_have_all_documented_forms(given: Any, prompts: list[Prompt]) -> None:
    assert prompts_of(given) == prompts


@pytest.mark.parametrize("given", [None, [], 7, True, [True], [[]], [-1], [2**31], {"text": "a"}, [None]])
def test_other_prompts_are_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="prompt"):
        prompts_of(given)


def test_defaults_are_those_of_the_server_below_the_models_own() -> None:
    spec = completion()
    assert spec.options == {"num_predict": -1}
    assert spec.defaults == {"top_p": 0.95, "min_p": 0.05, "num_keep": 0, "stop": []}
    assert spec.raw
    assert spec.think is False


def test_options_have_the_names_of_the_engine() -> None:
    spec = completion(
        n_predict=5, n_keep=2, temperature=-1, seed=2**32 - 1, top_k=7, stop=["x"], repeat_penalty=1.2
    )
    assert spec.options == {
        "num_predict": 5,
        "num_keep": 2,
        "temperature": 0.0,
        "seed": -1,
        "top_k": 7,
        "stop": ["x"],
        "repeat_penalty": 1.2,
    }
    assert completion(max_tokens=3).options["num_predict"] == 3
    assert completion(n_predict=0).options["num_predict"] == 1  # only to evaluate the prompt


def test_samplers_left_out_are_switched_off() -> None:
    spec = completion(samplers=["top_k", "top_p", "infill"], top_k=40, top_p=0.99)
    off = {"temperature": 1.0, "min_p": 0.0, "typical_p": 1.0, "dry_multiplier": 0.0, "xtc_probability": 0.0}
    assert spec.options.items() >= (off | {"top_k": 40, "top_p": 0.99}).items()
    assert spec.ignored == ["sampler 'infill' is unknown and ignored"]


@pytest.mark.parametrize("given", [[[5, 1.5], [6, False]], {"5": 1.5, "6": False}, [["5", 1.5], [6, False]]])
def test_biases_are_pairs_or_an_object_and_false_bans(given: Any) -> None:
    options = completion(logit_bias=given, banned_tokens=[1]).options
    assert options["logit_bias"] == {"5": 1.5}
    assert options["banned_tokens"] == [1, 6]


def test_fields_without_effect_are_tolerated_and_unknown_ones_named() -> None:
    assert completion(id_slot=3, cache_prompt=True, n_cache_reuse=256, t_max_prompt_ms=500).ignored == []
    assert len(completion(min_keep=2, speculativ=True).ignored) == 2


def test_probabilities_schemas_and_several_answers() -> None:
    spec = completion(n_probs=3, post_sampling_probs=True, n_cmpl=2, json_schema={"type": "integer"})
    request = spec.request
    assert (request.logprobs, request.top_logprobs, request.sampled_logprobs) == (True, 3, True)
    assert request.samples == 2
    assert spec.format() == Format.json_schema({"type": "integer"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_probs": 21}, "n_probs must be between 0 and 20"),
        ({"n_cmpl": 0}, "n_cmpl must be between 1 and 128"),
        ({"prompt": ["a"] * 2000, "n_cmpl": 2}, "at most 2048 are allowed"),
        ({"stop": 5}, "stop must be a list of strings"),
        ({"logit_bias": [["Hello", -1]]}, "logit_bias takes token ids, not 'Hello'"),
        ({"logit_bias": [5]}, "logit_bias: 5 is not a pair"),
        (
            {"n_cmpl": 2, "n_indent": 5},
            "n_indent and t_max_predict_ms are for requests with one answer",
        ),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "multimodal_data is not available"),
        ({"samplers": ["a"] * 257}, 'field "samplers": more than 256 items'),
        ({"response_fields": ["a"] * 257}, 'field "response_fields": more than 256 items'),
        ({"n_predict": "x"}, 'field "n_predict"'),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PunaError) as error:
        completion(**fields)
    assert message in str(error.value)


def test_infill_has_text_around_the_gap_and_of_other_files() -> None:
    extra = [{"text": "x", "filename": "x.py", "time": 5}, {"text": "y"}]
    (prompt,) = infill(prompt="line", input_extra=extra).prompts
    assert prompt == Infill(before="a", after="b", line="line", extra=[Excerpt("x", "x.py"), Excerpt("y")])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_prefix": None}, '"input_prefix" is required'),
        ({"input_suffix": None}, '"input_suffix" is required'),
        ({"prompt": [1]}, '"prompt" must be a string'),
        ({"input_extra": [{"filename": "a"}]}, 'field "input_extra[0].text" is missing'),
        ({"input_extra": "a"}, 'field "input_extra"'),
        ({"input_extra": [{"text": "a"}] * 4097}, 'field "input_extra": more than 4,096 items'),
    ],
)
def test_wrong_fields_of_infill_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        infill(**fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("loaded", "given", "found"),
    [
        (["a"], "", "a"),
        (["a", "b"], "c", "c"),
        ([], "", "model is required, because none is in memory"),
        (["b", "a"], " ", "model is required, because 2 are in memory (a, b)"),
    ],
)
def test_the_only_model_in_memory_needs_no_name(loaded: list[str], given: str, found: str) -> None:
    entries = [SimpleNamespace(model=SimpleNamespace(name=name)) for name in loaded]
    backend = cast(Service, SimpleNamespace(fleet=SimpleNamespace(loaded=lambda: entries)))
    if "required" not in found:
        assert wanted_model(backend, given) == found
        return
    with pytest.raises(RequestError) as error:
        wanted_model(backend, given)
    assert str(error.value).startswith(found)
