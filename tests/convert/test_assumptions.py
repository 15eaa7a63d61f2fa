"""A setting is carried into the file, has the only value that a file implies, or is refused."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from puna.convert import convert
from puna.convert.assumptions import check_settings
from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.keys import metadata
from puna.convert.registry import families_called
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from puna.model.load import load_model
from tests.convert.checkpoints import save_modules, saved
from tests.model.models.parity import (
    check_close,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.model.models.test_decoders import EXPERTS, MODELS
from tests.samples import sampled
from tests.tiny.decoders import GEMMA2, OLMO2, QWEN2, QWEN3_MOE, TinyDecoder
from tests.tiny.renamed import TinyRenamed

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
LLAMA = TinyDecoder("llama")
GEMMA3 = TinyDecoder(
    "gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}, norm_offset=1
)


_T5 = {"d_model": 64, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}


def with_settings(tiny: Any, settings: Mapping[str, Any]) -> Any:
    return dataclasses.replace(tiny, settings={**tiny.settings, **settings})


#: Settings that were once lost or misread.
CARRIED: dict[str, tuple[Any, dict[str, Any]]] = {
    "glm4moelite, gates as they are": (MODELS["glm4moelite"], {"norm_topk_prob": False}),
    "glm4moelite, kinds of layers": (MODELS["glm4moelite"], {"first_k_dense_replace": None}),
    "qwen3next, gates as they are": (MODELS["qwen3next"], {"norm_topk_prob": False}),
    "olmoe, gates that add up to 1": (MODELS["olmoe"], {"norm_topk_prob": True}),
    "olmoe, epsilon": (MODELS["olmoe"], {"rms_norm_eps": 1e-2}),
    **{
        f"{name}, yarn with a factor": (tiny, {"rope_parameters": {**YARN, "attention_factor": 1.7}})
        for name, tiny in {
            "llama": LLAMA, "mistral": TinyDecoder("mistral", {"sliding_window": None}), "qwen2": QWEN2,
            "qwen3": MODELS["qwen3"],
        }.items()
    },
    "llama, yarn with two scales": (
        LLAMA, {"rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}}
    ),
    "mistral, window": (TinyDecoder("mistral"), {"sliding_window": 6}),
    "gemma2, output of its own": (GEMMA2, {"tie_word_embeddings": False}),
    "falcon-h1, one table with two multipliers": (MODELS["falcon-h1"], {"tie_word_embeddings": True}),
    "gemma, base of rotation": (MODELS["gemma"], {"rope_parameters": {"rope_theta": 500.0}}),
    "deepseek2 V2, groups that do not limit": (
        MODELS["deepseek2 V2"], {"topk_method": "greedy", "n_group": 2, "topk_group": 1}
    ),
    "hunyuan-dense, dynamic without alpha": (
        MODELS["hunyuan-dense"],
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CARRIED)
def test_carried_setting_changes_results_as_in_transformers(name: str, tmp_path: Path) -> None:
    tiny, settings = CARRIED[name]
    theirs = with_settings(tiny, settings).build()
    convert(saved(tmp_path / "checkpoint", theirs), tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 40, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [40]), reference_log_probabilities(theirs, tokens))


#: Settings that no key of a file carries, and the error.
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "activation": (LLAMA, {"hidden_act": "relu"}, "'hidden_act' is 'relu', but .* only have 'silu' or"),
    "latent, two scales": (
        MODELS["deepseek2 V3"], {"rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}},
        r"mscale' is 0\.5, but .* deepseek2 can only have 1\.0",
    ),
    "latent, one scale": (
        MODELS["deepseek2 V3"], {"rope_parameters": {**YARN, "mscale_all_dim": 1.0}},
        r"mscale_all_dim' is 1\.0, but .* has no such setting",
    ),
    "gemma2, divisor": (
        GEMMA2, {"query_pre_attn_scalar": 7}, "'query_pre_attn_scalar' is 7, but .* gemma2 can only have 24"
    ),
    "gemma3, divisor": (
        GEMMA3, {"query_pre_attn_scalar": 7}, "'query_pre_attn_scalar' is 7, but .* gemma3 can only have 16"
    ),
    "gemma3, rotation of a published size": (
        GEMMA3, {"num_hidden_layers": 34, "layer_types": None}, "of 34 layers .* can only have 'linear' by 8"
    ),
    "gemma3, caps": (GEMMA3, {"attn_logit_softcapping": 5.0}, "'attn_logit_softcapping' is 5.0, but"),
    "cohere2, layers": (
        MODELS["cohere2"], {"layer_types": ["full_attention", "sliding_attention"] * 2}, "'layer_types' is"
    ),
    "cohere2, rotation": (
        MODELS["cohere2"], {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        "'rope_type' is 'linear'; a file of architecture cohere2 can only have",
    ),
    "qwen3moe, every second layer": (
        QWEN3_MOE, {"decoder_sparse_step": 2}, "'decoder_sparse_step' is 2, but .* can only have 1"
    ),
    "qwen3moe, layers without experts": (
        TinyDecoder("qwen3_moe", EXPERTS), {"mlp_only_layers": [0]}, r"'mlp_only_layers' is \[0\], but"
    ),
    "glm4moelite, kinds of layers": (
        MODELS["glm4moelite"], {"mlp_layer_types": ["sparse", "dense", "sparse"]}, "dense"
    ),
    "qwen2, windows": (QWEN2, {"use_sliding_window": True}, "is True, but .* can only have False"),
    "olmoe, clipping": (MODELS["olmoe"], {"clip_qkv": 0.5}, "'clip_qkv' is 0.5, but .* no such setting"),
    "olmo2, yarn with a factor": (
        OLMO2, {"rope_parameters": {**YARN, "attention_factor": 1.7}}, "attention_factor' is 1.7, but"
    ),
    "smollm3, layers": (MODELS["smollm3"], {"no_rope_layers": [1, 0, 1, 1, 1]}, "'no_rope_layers' is"),
    "gpt-oss, limit": (MODELS["gpt-oss"], {"swiglu_limit": 1.0}, "'swiglu_limit' is 1.0, but .* 7.0"),
    "hy_v4, gates": (MODELS["hy_v4"], {"gating_type": "headwise"}, "can only have 'elementwise'"),
    "hy_v4, sinks": (MODELS["hy_v4"], {"learnable_sink": False}, "is False, but .* can only have True"),
    "hy_v4, streams": (MODELS["hy_v4"], {"enable_ihc": False}, "is False, but .* can only have True"),
    "deepseek4, groups": (
        MODELS["deepseek4"], {"compress_rates": {"compressed_sparse_attention": 3}},
        "can only have groups of 4 in layers of kind compressed_sparse_attention",
    ),
    "deepseek4, heavy groups": (
        MODELS["deepseek4"], {"compress_rates": {"heavily_compressed_attention": 4}},
        "and of other sizes in those of kind heavily_compressed_attention",
    ),
    "deepseek4, kinds": (
        MODELS["deepseek4"], {"layer_types": ["full_attention"] * 4}, "4 layers of kinds .*full_attention"
    ),
    "deepseek4, tables": (
        MODELS["deepseek4"], {"mlp_layer_types": ["moe", "hash_moe", "moe", "moe"]},
        "only the first layers can be of kind 'hash_moe'",
    ),
    "deepseek4, shared experts": (MODELS["deepseek4"], {"n_shared_experts": 2}, "is 2, but .* only have 1"),
    "deepseek4, magnitude": (
        MODELS["deepseek4"],
        {"rope_parameters": {"main": {"rope_type": "default", "rope_theta": 1e4},
                             "compress": {**YARN, "rope_theta": 5e3, "attention_factor": 1.5}}},
        "attention_factor' is 1.5, but .* only have 1.0",
    ),
    "deepseek4, no magnitude": (
        MODELS["deepseek4"],
        {"rope_parameters": {"main": {"rope_type": "default", "rope_theta": 1e4},
                             "compress": {**YARN, "rope_theta": 5e3}}},
        "lacks 'rope_parameters.compress.attention_factor', which must be 1.0",
    ),
    "deepseek4, scaled windows": (
        MODELS["deepseek4"],
        {"rope_parameters": {"main": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                             "compress": {"rope_type": "default", "rope_theta": 5e3}}},
        "'rope_parameters.main.rope_type' is 'linear', but .* only have 'default'",
    ),
    "gpt-oss, blend": (
        MODELS["gpt-oss"], {"rope_parameters": YARN}, "YaRN without 'truncate': .* can only have False"
    ),
    "mamba2, steps": (
        MODELS["mamba2"], {"time_step_limit": [0.0, 0.5]}, "'time_step_limit' is .*0.5.*, but .* mamba2"
    ),
    "laguna, capped router": (
        MODELS["laguna"], {"moe_router_logit_softcapping": 5.0},
        "softcapping' is 5.0, but .* can only have 0.0",
    ),
    "dots1, windows": (
        MODELS["dots1"], {"sliding_window": 8, "max_window_layers": 1, "layer_types": None},
        "'max_window_layers' is 1, but",
    ),
    "hunyuan-moe, layers": (MODELS["hunyuan-moe"], {"moe_topk": [1, 2]}, "one number for all layers"),
    "granite_swa, bases": (
        MODELS["granite_swa"], {"layer_rope_theta": [1e4, 5e4, 1e4, 1e4, 0]}, "'layer_rope_theta' is"
    ),
    "cohere2moe, sum": (
        MODELS["cohere2moe"], {"shared_expert_combination_strategy": "sum"}, "can only have 'average'"
    ),
    "llama, scaled by nothing": (
        LLAMA, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "rotation lacks 'factor'"
    ),
    "hy_v4, no limit": (MODELS["hy_v4"], {"swiglu_limit": 0.0}, "'swiglu_limit' is 0.0, but should be above"),
    "bailingmoe3, no groups": (
        MODELS["bailingmoe3"], {"n_group": None, "num_expert_group": None}, "lacks 'n_group'"
    ),
    "latent, rotation that is not interleaved": (
        MODELS["deepseek2 V3"], {"rope_interleave": None}, "'rope_interleave' is None, but .* only have True"
    ),
    "kimi-linear, groups": (MODELS["kimi-linear"], {"n_group": 2}, "'n_group' is 2, but .* only have 1"),
    "llama, part of a head": (
        LLAMA, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "can only have 1.0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_setting_that_no_key_can_carry_is_refused(name: str) -> None:
    tiny, settings, message = REFUSED[name]
    with pytest.raises(ConversionError, match=message):
        check(published_config(tiny) | settings)


@pytest.mark.parametrize("equal", [True, False])
def test_output_of_a_tied_checkpoint_is_kept_if_it_differs_from_the_table(
    equal: bool, folder: Path, tmp_path: Path
) -> None:
    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    if equal:
        rewrite_tensors(folder, repeat)
    change_config(folder, tie_word_embeddings=True)
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert ("output.weight" in file.tensors) is not equal
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 20, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [20]), reference_log_probabilities(theirs, tokens))


def test_tensors_are_equal_if_all_pieces_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        table = tensors["model.embed_tokens.weight"]
        last = table.clone()
        last[-1, -1] += 1
        tensors.update(same=table.clone(), last=last, half=table.half(), flat=table.reshape(-1).clone())

    rewrite_tensors(folder, add)
    monkeypatch.setattr("puna.convert.checkpoint._PIECE", 1000)
    with Checkpoint(folder) as checkpoint:
        others = ("same", "last", "half", "flat")
        equal = [checkpoint.are_equal(name, "model.embed_tokens.weight") for name in others]
    assert equal == [True, False, False, False]


@pytest.mark.parametrize(("tied", "refused"), [(True, True), (None, True), (False, False)])
def test_t5_whose_output_reads_scaled_states_is_refused(tied: bool | None, refused: bool) -> None:
    config = Config({"tie_word_embeddings": tied})
    config.has_output = True
    (family,) = families_called("T5ForConditionalGeneration")
    with pytest.raises(ConversionError, match="no factor") if refused else contextlib.nullcontext():
        family.check_others(config, ())


#: Names of models that are decoders in transformers.
CONFIGURED = [
    name
    for name, tiny in MODELS.items()
    if isinstance(tiny, TinyDecoder)
    and "rwkv" not in name
    and name != "mistral4"
    and "apertus" not in name  # some of its keys are from tensors
]


#: Models that are not compared with a class of transformers: it has none of their own, or their family has
#: others, of classes with other defaults.
OF_NO_CLASS = ("codeshell", "deepseek", "exaone", "minicpm", "openelm, layers alike", "orion", "glm4")


def once_for_each_class(names: Sequence[str]) -> list[Any]:
    """Return cases of all names, those of a class that an earlier one has only for `make test-thorough`."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(MODELS[name].hf, name)
    return sampled(names, first.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", once_for_each_class([name for name in CONFIGURED if name not in OF_NO_CLASS])
)
def test_missing_and_null_settings_mean_what_transformers_makes_of_them(name: str) -> None:
    raw, kind = published_config(MODELS[name]), type(MODELS[name].config())
    wrong, compared = {}, 0
    for setting in raw.keys() - {"model_type"}:
        rest = {key: value for key, value in raw.items() if key != setting}
        for changed in (rest, {**rest, setting: None}):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
                complete = kind.from_dict(copy.deepcopy(changed)).to_json_string(use_diff=False)
                theirs = metadata_of({**json.loads(complete), "architectures": raw["architectures"]})
                ours = metadata_of(changed)
                compared += 1
                # A key left out has its reader's default, or makes readers refuse the file.
                different = [key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]]
                if different:
                    wrong[setting, setting in changed] = [(key, ours[key], theirs[key]) for key in different]
    assert not wrong
    assert compared


@pytest.mark.parametrize("name", CONFIGURED)
def test_every_setting_of_the_tiny_models_is_known(name: str) -> None:
    assert check(published_config(MODELS[name])) == []


def published_config(tiny: Any) -> dict[str, Any]:
    """Return the settings as transformers saves them."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as SEEING

    if isinstance(tiny, TinyRenamed):
        return {**vars(original(tiny).config), "architectures": [tiny.name]}
    config = tiny.config()
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    name = CLASSES.get(config.model_type) or SEEING[config.model_type]
    return {**found, "architectures": [name]}


#: Settings read while converting tensors and the vocabulary.
WITH_TENSORS = (
    "tie_word_embeddings", "vocab_size", "num_key_value_heads", "attention_in_multiplier",
    "attention_out_multiplier", "embedding_multiplier", "key_multiplier", "lm_head_multiplier",
    "mlp_multipliers", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier",
)  # fmt: skip


def check(raw: Mapping[str, Any]) -> list[str]:
    """Return the unknown settings. Raises ConversionError."""
    config, family = completed(raw)
    metadata(config, family)
    family.extra(config)
    config.get(*WITH_TENSORS)
    return [*check_settings(config, family), *family.check_others(config, ())]


def completed(raw: Mapping[str, Any]) -> tuple[Config, Family]:
    """Return the settings with defaults, and the family of their model."""
    config = Config(raw)
    family = next(each for each in families_called(raw["architectures"][0]) if each.when(config))
    config.add_defaults(family.defaults)
    return config, family


def metadata_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file whose settings are refused for nothing. Raises ConversionError."""
    check(raw)
    return metadata(*completed(raw))


PUBLISHED = Path(__file__).parent / "published.json"


@pytest.mark.parametrize("name", json.loads(PUBLISHED.read_text()))
def test_published_configuration_is_carried_completely(name: str) -> None:
    assert check(json.loads(PUBLISHED.read_text())[name]) == []


def read_config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def change_config(folder: Path, **settings: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(read_config(folder) | settings))
    return folder


def rewrite_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "checkpoint", LLAMA.build())


def test_unknown_numerical_setting_is_refused_unless_ignored(folder: Path, tmp_path: Path) -> None:
    change_config(folder, attention_sharpness={"scale": 2.0})
    with pytest.raises(ConversionError, match=r"'attention_sharpness.scale' is 2.0, .* --ignore attention_s"):
        convert(folder, tmp_path / "m.gguf")
    convert(folder, tmp_path / "m.gguf", ignore=["attention_sharpness"])
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.architecture == "llama"
    change_config(folder, hidden_act="relu", attention_sharpness=None)
    convert(folder, tmp_path / "m.gguf", ignore=["hidden_act"])


def test_other_unknown_settings_are_listed_in_one_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_config(folder, colour="blue", layers_of_paint=2, expert_mode=False)
    with caplog.at_level(logging.WARNING, "puna.convert"):
        convert(folder, tmp_path / "m.gguf")
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("puna.convert")]
    assert message.endswith(": colour, layers_of_paint, expert_mode")


def test_missing_output_is_not_assumed_to_be_tied_to_the_embedding(folder: Path, tmp_path: Path) -> None:
    rewrite_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ConversionError, match=r"has no output \('lm_head.weight'\).*'tie_word_embeddings'"):
        convert(folder, tmp_path / "m.gguf")
    change_config(folder, tie_word_embeddings=True)
    convert(folder, tmp_path / "m.gguf")


def test_checkpoint_with_fewer_layers_than_configured_is_refused(folder: Path, tmp_path: Path) -> None:
    layers = read_config(folder)["num_hidden_layers"]
    change_config(folder, num_hidden_layers=layers + 1)
    with pytest.raises(
        ConversionError, match=rf"there are {layers + 1} layers, but the checkpoint has {layers}"
    ):
        convert(folder, tmp_path / "m.gguf")


#: Settings whose keys no reader accepts, though transformers builds the models.
UNREADABLE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "bailingmoe3, decays without a bound": (
        MODELS["bailingmoe3"], {"kda_lower_bound": 0.0}, "kda.gate_lower_bound' should be below 0, but is 0.0"
    ),
    "deepseek4, no rounds": (
        MODELS["deepseek4"], {"hc_sinkhorn_iters": 0}, "sinkhorn_iterations' should be positive, but is 0"
    ),
    "glm5-next, no epsilon": (
        MODELS["glm5-next"], {"rms_norm_eps": 0.0}, "layer_norm_rms_epsilon' should be above 0, but is 0.0"
    ),
    "glm5-next, groups of one": (
        MODELS["glm5-next"], {"index_kpool": 1}, "indexer.kpool' is 1, which is no group"
    ),
    "glm5-next, no choice to share": (
        MODELS["glm5-next"], {"indexer_types": ["shared"] * 5}, "indexer.types' has no indexer for the first"
    ),
    "qwen4exp, one tap": (
        MODELS["qwen4exp"], {"linear_conv_kernel_dim": 1}, "ssm.conv_kernel' is 1, which is too short"
    ),
    "step35, no window": (
        MODELS["step35"], {"sliding_window": None}, "'step35.attention.sliding_window' is missing"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", UNREADABLE)
def test_settings_that_no_reader_accepts_are_refused_before_tensors_are_read(
    name: str, tmp_path: Path
) -> None:
    tiny, settings, message = UNREADABLE[name]
    folder = saved(tmp_path / "checkpoint", with_settings(tiny, settings).build())
    with pytest.raises(ConversionError, match=message):
        convert(folder, tmp_path / "m.gguf", report=lambda done, total: pytest.fail("a tensor was read"))


def test_embedding_models_need_no_output_matrix(folder: Path, tmp_path: Path) -> None:
    rewrite_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    save_modules(folder)
    convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("setting", "module"),
    [("attention_bias", "self_attn.o_proj"), ("mlp_bias", "mlp.down_proj")],
)
def test_biases_transformers_would_skip_are_refused_unless_the_setting_is_ignored(
    setting: str, module: str, folder: Path, tmp_path: Path
) -> None:
    name = f"model.layers.1.{module}.bias"
    rewrite_tensors(folder, lambda tensors: tensors.update({name: torch.ones(64)}))
    with pytest.raises(
        ConversionError, match=rf"'{setting}' is False, but there is 'blk\.1\..*_[a-z]*\.bias'"
    ):
        convert(folder, tmp_path / "m.gguf")
    unsaid = {key: value for key, value in read_config(folder).items() if key != setting}
    (folder / "config.json").write_text(json.dumps(unsaid))
    with pytest.raises(ConversionError, match=f"'{setting}' is False, but there is"):
        convert(folder, tmp_path / "m.gguf")
    convert(folder, tmp_path / "m.gguf", ignore=[setting])
    change_config(folder, **{setting: True})
    convert(folder, tmp_path / "m.gguf")


def test_ignored_setting_must_exist(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"config\.json has no setting 'hidden_akt' to ignore"):
        convert(folder, tmp_path / "m.gguf", ignore=["hidden_akt"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("llama", (4096, 32, 32, 11008, None)), ("mistral", (4096, 32, 32, 14336, 8))],
)
def test_sizes_missing_from_llava_configs_are_those_of_the_original_models(
    kind: str, expected: tuple[int | None, ...]
) -> None:
    text = {"model_type": kind, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    config = Config({"architectures": ["LlavaForConditionalGeneration"], "text_config": text})
    (family,) = (each for each in families_called(f"{kind.capitalize()}ForCausalLM") if each.when(config))
    config.add_defaults(family.defaults)
    found = metadata(config, family)
    names = (
        "embedding_length", "block_count", "attention.head_count", "feed_forward_length",
        "attention.head_count_kv",
    )  # fmt: skip
    assert tuple(found.get(name) for name in names) == expected


@pytest.mark.parametrize(
    ("architecture", "settings", "expected"),
    [
        ("Qwen3MoeForCausalLM", {}, ("norm_top_k_prob", False)),
        ("LlamaForCausalLM", {}, ("attention.layer_norm_rms_epsilon", 1e-6)),
        ("Qwen2ForCausalLM", {}, ("rope.freq_base", 10000.0)),
        ("GraniteForCausalLM", {}, ("attention.scale", 1.0)),
        ("CohereForCausalLM", {}, ("logit_scale", 0.0625)),
        ("Gemma2ForCausalLM", {}, ("attn_logit_softcapping", 50.0)),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None}, ("attn_logit_softcapping", 0.0)),
        ("Gemma3nForCausalLM", {"sliding_window": 8}, ("attention.shared_kv_layers", 15)),
        ("Gemma3nForCausalLM", {"sliding_window": 8}, ("context_length", 32768)),
        (
            "Gemma4ForCausalLM",
            {"layer_types": ["full_attention"] * 2, "intermediate_size": 96},
            ("attention.key_length", 512),
        ),
        ("RobertaModel", {"max_position_embeddings": 514}, ("context_length", 512)),
        ("FalconForCausalLM", {"multi_query": None}, ("attention.head_count_kv", 4)),
        ("OlmoeForCausalLM", {}, ("attention.layer_norm_rms_epsilon", 1e-5)),
        # Values that are false are values.
        ("OlmoeForCausalLM", {"rms_norm_eps": 0.0}, ("attention.layer_norm_rms_epsilon", 0.0)),
        ("StableLmForCausalLM", {"layer_norm_eps": 0.0}, ("attention.layer_norm_epsilon", 0.0)),
        ("Gemma3ForCausalLM", {"rms_norm_eps": 0.0}, ("attention.layer_norm_rms_epsilon", 0.0)),
        (
            "T5ForConditionalGeneration",
            {**_T5, "layer_norm_epsilon": 0.0},
            ("attention.layer_norm_epsilon", 0.0),
        ),
    ],
)
def test_missing_setting_has_the_default_of_transformers(
    architecture: str, settings: dict[str, Any], expected: tuple[str, Any]
) -> None:
    config = Config({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, **settings})
    (family, *_) = (each for each in families_called(architecture) if each.when(config))
    config.add_defaults(family.defaults)
    key, value = expected
    assert metadata(config, family)[key] == value


@pytest.mark.parametrize(("layers", "sparse"), [(12, 10), (10, 0)])
def test_first_ten_layers_of_a_longer_gemma_3n_are_sparse_by_default(layers: int, sparse: int) -> None:
    config, family = completed(
        {"architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": layers, "hidden_size": 64}
    )
    found = metadata(config, family)["activation_sparsity_scale"]
    assert found[:sparse] == pytest.approx([1.6448536] * sparse)  # 95% of a normal distribution are below it
    assert found[sparse:] == [float("-inf")] * (layers - sparse)


@pytest.mark.parametrize("architecture", ["KimiLinearForCausalLM", "BailingHybridForCausalLM"])
@pytest.mark.parametrize(
    ("settings", "summed"),
    [
        ({}, True), ({"moe_renormalize": None}, False), ({"moe_renormalize": False}, False),
        ({"norm_topk_prob": False}, False), ({"norm_topk_prob": False, "moe_renormalize": True}, True),
    ],
)  # fmt: skip
def test_name_that_transformers_keeps_wins_and_may_be_null(
    architecture: str, settings: dict[str, Any], summed: bool
) -> None:
    name = {"KimiLinearForCausalLM": "kimi-linear", "BailingHybridForCausalLM": "bailingmoe3"}[architecture]
    raw = published_config(MODELS[name])
    bare = {key: value for key, value in raw.items() if key not in ("moe_renormalize", "norm_topk_prob")}
    config, family = completed({**bare, **settings})
    assert metadata(config, family)["expert_weights_norm"] is summed
    theirs = type(MODELS[name].config()).from_dict({**bare, **settings})
    assert bool(theirs.norm_topk_prob) is summed


def test_yarn_attention_factor_is_not_written_beside_its_log_multiplier(tmp_path: Path) -> None:
    """llama.cpp would multiply the factor it derives from the log multiplier by `attn_factor`."""
    scales = {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    folder = saved(tmp_path / "checkpoint", with_settings(MODELS["deepseek2 V3"], scales).build())
    convert(folder, tmp_path / "model.gguf", FileType.F32)
    with open_gguf(tmp_path / "model.gguf") as file:
        assert file.get("rope.scaling.yarn_log_multiplier") == pytest.approx(0.1)
        assert file.get("rope.scaling.attn_factor") is None


@pytest.mark.parametrize("layers", [[2], [1]])
def test_kimi_linear_may_list_its_attention_layers_twice_if_both_lists_agree(
    layers: list[int], tmp_path: Path
) -> None:
    tiny = MODELS["kimi-linear"]
    folder = saved(tmp_path / "checkpoint", tiny.build())
    path = folder / "config.json"
    config = json.loads(path.read_text())
    attending = [i for i, kind in enumerate(config["layer_types"], 1) if kind == "full_attention"]
    config["linear_attn_config"] = {"full_attn_layers": layers}
    path.write_text(json.dumps(config))
    if layers == attending:
        convert(folder, tmp_path / "model.gguf", FileType.F32)
    else:
        with pytest.raises(ConversionError, match="full_attn_layers"):
            convert(folder, tmp_path / "model.gguf", FileType.F32)
