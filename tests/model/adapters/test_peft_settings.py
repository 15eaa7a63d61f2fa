"""PEFT settings: each module's alpha, and refused settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from puna.errors import ModelError, UnsupportedModelError
from puna.model.adapters.peft import CONFIG, PeftSettings

MODULES = [
    f"{root}model.layers.{layer}.{module}"
    for root in ("", "language_model.")
    for layer in (0, 1, 10, 11)
    for module in ("self_attn.q_proj", "self_attn.qkv_proj", "mlp.up_proj", "mlp.experts.3.up_proj")
]


def settings(folder: Path, **fields: Any) -> PeftSettings:
    path = folder / CONFIG
    path.write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, **fields}))
    return PeftSettings.read(path)


@pytest.mark.parametrize(
    "patterns",
    [
        {"q_proj": 1},
        {"model.layers.1.self_attn.q_proj": 1, "q_proj": 2},
        {"q_proj": 1, "model.layers.1.self_attn.q_proj": 2},  # the first that matches counts
        {"^model.layers.0.self_attn.q_proj": 1, "^layers.0": 2},
        {r"^model\.layers\.\d+\.mlp\.up_proj$": 1},
        {r".*\.layers\.(0|11)\..*": 1, r"layers\.1\d\..*_proj": 2},
        {r".*\.self_attn\.q_proj": 1},
        {r"experts\.\d+\.(up|down)_proj": 1, "up_proj": 2},
        {"self.attn.q_proj": 1, "q.v_proj": 2},  # a dot is any character, also of a plain name
        {"q_proj|up_proj": 1},
        {"proj": 1, "attn.q": 2, "": 3},
        {r"(?i:Q_PROJ)": 1, r"(?!.*experts).*up_proj": 2, r"(.)kv_pro[jk]": 3, "[^.]+": 4},
        {r"layers\.(\d)\1\.mlp\.up_proj": 1, "layers.1{1,2}.self_attn.q_proj": 2},
    ],
    ids=str,
)
def test_a_module_has_the_alpha_of_the_first_pattern_that_matches_as_in_peft(
    tmp_path: Path, patterns: dict[str, int]
) -> None:
    ours, found = settings(tmp_path, alpha_pattern=patterns), set()
    for module in MODULES:
        # `get_pattern_key` of PEFT
        key = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), None)
        assert ours.factor(module, 4) == patterns.get(key or "", 8) / 4 if key is not None else 2, module
        found.add(key)
    assert len(found) > 1 or patterns == {"proj": 1, "attn.q": 2, "": 3}


def test_the_scale_divides_by_the_root_of_the_rank_with_rslora(tmp_path: Path) -> None:
    ours = settings(tmp_path, use_rslora=True, alpha_pattern={"q_proj": 6}, rank_pattern={"q_proj": 9})
    assert (ours.factor("layers.0.q_proj", 9), ours.factor("layers.0.k_proj", 16)) == (2.0, 2.0)


@pytest.mark.parametrize(
    "pattern", ["(a|a)*", f"{'(' * 99}a{')*' * 99}b?", r"(?:(?:a|b|ab|ba|aba)+c?)+"], ids=len
)
def test_patterns_that_never_finish_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("puna.model.adapters.peft._MAX_SECONDS", 0.2)
    ours = settings(tmp_path, alpha_pattern={pattern: 1})
    with pytest.raises(UnsupportedModelError, match=r"the patterns of 'alpha_pattern' take more than 0\.2 s"):
        ours.factor("a" * 500 + "!", 4)


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "(?R)", r"\m", "a{e<=2}", "x" * 1001, "(?<=a+)b", "(" * 400 + ")" * 400]
)
def test_invalid_regular_expressions_are_named(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ModelError, match=r"'alpha_pattern' has .*, not a regular expression"):
        settings(tmp_path, alpha_pattern={pattern: 1}).factor("model.layers.0.q_proj", 4)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("use_dora", True),
        ("use_qalora", True),
        ("fan_in_fan_out", True),
        ("lora_bias", True),
        ("alora_invocation_tokens", [1, 2]),
        ("layer_replication", [[0, 4], [2, 5]]),
        ("use_bdlora", {"nblocks": 2}),
        ("arrow_config", {"top_k": 3}),
        ("kasa_config", {"beta": 1e-4}),
        ("monteclora_config", {"n": 2}),
    ],
)
def test_settings_that_change_the_computation_are_refused_by_name(
    tmp_path: Path, setting: str, value: Any
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{setting}' is not supported"):
        settings(tmp_path, **{setting: value})


@pytest.mark.parametrize("way", ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "new"])
def test_an_adapter_trained_with_changed_base_weights_is_refused(tmp_path: Path, way: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'init_lora_weights' is '{way}'"):
        settings(tmp_path, init_lora_weights=way)


def test_settings_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    none = dict.fromkeys(("alora_invocation_tokens", "layer_replication", "kasa_config", "alpha_pattern"))
    chosen = {
        "target_modules": ["q_proj"],
        "exclude_modules": "k_proj",
        "layers_to_transform": [0, 1],
        "layers_pattern": "layers",
        "target_parameters": ["experts.down_proj"],
        "modules_to_save": ["score"],  # whose tensors would be refused
    }
    for way in (True, False, None, "gaussian", "eva", "orthogonal", "mica"):
        ours = settings(tmp_path, init_lora_weights=way, **none, **chosen)
        assert ours.factor("model.layers.0.self_attn.q_proj", 4) == 2
