"""Options: Ollama's names and coercion, and errors that state the option, its value and the range."""

from __future__ import annotations

import pytest

from puna.errors import OptionError
from puna.options import LLAMACPP, Options, Placement, engine_from_env


def test_later_layers_win_and_null_is_skipped() -> None:
    merged = Options.merge({"top_k": 10, "seed": 1}, None, {"top_k": 20, "seed": None})
    assert (merged.top_k, merged.seed, merged.temperature) == (20, 1, 0.8)


def test_default_options_are_ollamas() -> None:
    """All but `repeat_penalty`, whose 1.1 is ignored by Ollama's engine."""
    published = {
        "num_batch": 512, "num_gpu": -1, "main_gpu": 0, "use_mmap": None, "num_thread": 0, "num_keep": 4,
        "seed": -1, "num_predict": -1, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "typical_p": 1.0,
        "temperature": 0.8, "repeat_last_n": 64, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    assert {name: getattr(Options(), name) for name in published} == published
    assert Options().repeat_penalty == 1


def test_numbers_are_coerced_as_ollama_does() -> None:
    merged = Options.merge({"top_k": 40.9, "temperature": 1, "stop": ["a", "", "b"]})
    assert (merged.top_k, merged.temperature, merged.stop) == (40, 1.0, ("a", "b"))
    assert isinstance(merged.temperature, float)


def test_options_without_effect_are_reported() -> None:
    assert Options.merge({"tfs_z": 1, "heat": 2}) == Options()
    assert Options.ignored({"num_gpu": 99}, {"tfs_z": 1, "top_k": 1, "tempature": 0.5, "heat": 2}) == [
        'option "num_gpu" has no effect: models are computed by the processor',
        'option "tfs_z" has no effect: this kind of sampling is not supported',
        'option "tempature" is unknown and ignored (did you mean "temperature"?)',
        'option "heat" is unknown and ignored',
    ]


def test_placement_options_take_effect_with_llama_cpp() -> None:
    given = {"num_gpu": 99, "main_gpu": 1, "tensor_split": "3,1", "use_mmap": False, "low_vram": True}
    assert len(Options.ignored(given)) == 4
    assert Options.ignored(given, engine=LLAMACPP) == [
        'option "low_vram" has no effect: num_gpu says how much is on a GPU'
    ]
    assert Options.merge(given).placement == Placement(99, 1, (3.0, 1.0), False)
    assert Options.merge({"tensor_split": [1, 2]}).placement == Placement(tensor_split=(1.0, 2.0))


def test_options_for_several_gpus_need_several() -> None:
    given = {"num_gpu": 5, "main_gpu": 1, "tensor_split": "3,1", "low_vram": True}
    useless = 'option "low_vram" has no effect: num_gpu says how much is on a GPU'
    assert Options.ignored(given, on_gpu=5, gpus=2) == [useless]
    assert Options.ignored(given, on_gpu=5, gpus=1) == [
        'option "main_gpu" has no effect: there is one GPU',
        'option "tensor_split" has no effect: there is one GPU',
        useless,
    ]


@pytest.mark.parametrize(
    ("value", "replicas"),
    [
        (2, (2, 2)), ("2", (2, 2)), ("1,4", (1, 4)), ([1, 4], (1, 4)), ("2, 0", (2, 0)), ("0,3", (1, 3)),
        (None, None),
    ],
)  # fmt: skip
def test_replicas_have_a_minimum_and_a_maximum(value: object, replicas: tuple[int, int] | None) -> None:
    assert Options.merge({"replicas": value}).replicas == replicas


def test_replicas_take_effect_in_clusters_only() -> None:
    assert Options.ignored({"replicas": 2}) == ['option "replicas" has no effect: the server runs no cluster']
    assert Options.ignored({"replicas": 2}, scales=True) == []


def test_environment_selects_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_from_env() == "auto"
    monkeypatch.setenv("PUNA_ENGINE", "llamacpp")
    assert engine_from_env() == "llamacpp"
    monkeypatch.setenv("PUNA_ENGINE", "ggml")
    with pytest.raises(OptionError, match=r"PUNA_ENGINE: .* must be one of auto, puna, llamacpp, not 'ggml'"):
        engine_from_env()


def test_options_equal_to_the_actual_behaviour_are_not_reported() -> None:
    actual = {"num_gpu": 0, "main_gpu": 0, "use_mmap": None, "low_vram": False, "tensor_split": []}
    assert Options.ignored({"num_gpu": 99}, actual) == []
    assert Options.ignored({"num_gpu": -1}, None) == []


def test_option_name_of_another_program_gets_a_suggestion() -> None:
    (sentence,) = Options.ignored({"max_tokens": 5})
    assert sentence == 'option "max_tokens" is unknown and ignored (did you mean "num_predict"?)'


def test_only_the_first_of_many_unknown_options_are_listed() -> None:
    sentences = Options.ignored({"x" * 10_000 + str(number): 1 for number in range(1000)})
    assert len(sentences) == 9
    assert sentences[-1] == "992 more unknown options are ignored"
    assert max(map(len, sentences)) < 80


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_ctx", "4096", "must be of type integer"),
        ("num_ctx", 0, "between 1 and"),
        ("num_thread", -1, "between 0 and 4096"),
        ("temperature", -0.1, "between 0 and 100"),
        ("temperature", float("nan"), "must be of type float32"),
        ("temperature", True, "must be of type float32"),
        ("top_p", 1.5, "between 0 and 1"),
        ("use_mmap", 1, "must be of type boolean"),
        ("stop", "END", "must be of type array"),
        ("speculate", "always", "must be one of off, prompt, draft, mtp"),
        ("speculate", ["off"], "must be of type string"),
        ("draft", 7, "must be of type string"),
        ("engine", "ollama", "must be one of auto, puna, llamacpp"),
        ("main_gpu", 16, "between 0 and 15"),
        ("tensor_split", "3;1", "must be numbers such as 3,1"),
        ("tensor_split", 3, "must be of type array"),
        ("tensor_split", [-1], "between 0 and"),
        ("tensor_split", [1] * 17, "at most 16 numbers"),
        *(
            ("replicas", value, "must be a number, or a minimum and a maximum such as 1,4")
            for value in ("x", "1,2,3", "-1", "1,", True, [1.5], {}, 2.0)
        ),
        ("replicas", "4,2", "must not have a minimum above its maximum"),
        ("replicas", [1, 5000], "between 0 and 4096"),
        ("logit_bias", [1], "must be of type object"),
        ("logit_bias", {"-1": 1}, "must have token ids as keys, not '-1'"),
        ("logit_bias", {"1": "much"}, "must be of type float32"),
        ("logit_bias", {"1": 100.5}, "between -100 and 100"),
        ("stop", ["a", 1], "must be an array of strings"),
        ("seed", float("inf"), "between"),
    ],
)
def test_bad_value_is_reported_with_its_option(name: str, value: object, words: str) -> None:
    with pytest.raises(OptionError, match=f'option "{name}" .*{words}'):
        Options.merge({name: value})
