"""The type each tensor gets; `make test-peers` compares the choice with llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.errors import RequestError
from puna.gguf import FileType, GGMLType, GGUFWriter, open_gguf
from puna.quantize import file_type_of
from puna.quantize.mixture import mixture


def types(
    folder: Path, kind: str, tensors: dict[str, tuple[int, ...]], architecture: str = "llama", **keys: Any
) -> dict[str, str]:
    writer = GGUFWriter(folder / "a.gguf", architecture)
    for key, value in {"block_count": 16, "attention.head_count": 8, **keys}.items():
        writer.add(key.replace("__", "."), value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float16), GGMLType.F16)
    writer.write()
    with open_gguf(folder / "a.gguf") as file:
        return {name: chosen.name for name, chosen in mixture(file, file_type_of(kind)).items()}


def layers(part: str, count: int = 16, columns: int = 256) -> dict[str, tuple[int, ...]]:
    return {f"blk.{layer}.{part}.weight": (2, columns) for layer in range(count)}


def test_some_layers_of_a_q4_k_m_get_more_bits(tmp_path: Path) -> None:
    # The published rule: the first and the last eighth of the layers, and every third in between.
    chosen = types(tmp_path, "Q4_K_M", layers("ffn_down"))
    more = [layer for layer in range(16) if chosen[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert {chosen[name] for name in layers("ffn_down")} == {"Q4_K", "Q6_K"}


def test_layers_are_counted_by_number_and_not_by_sorted_names(tmp_path: Path) -> None:
    chosen = types(tmp_path, "Q4_K_S", layers("attn_v"))
    assert [layer for layer in range(16) if chosen[f"blk.{layer}.attn_v.weight"] == "Q5_K"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("output_norm.weight", (256,)),
        ("blk.0.attn_norm.weight", (256,)),
        ("blk.0.attn_q.bias", (256,)),
        ("blk.0.ffn_gate_inp.weight", (8, 256)),
        ("blk.0.ffn_gate_inp_shexp.weight", (1, 256)),
        ("blk.0.ssm_conv1d.weight", (4, 256)),
        ("blk.0.shortconv.conv.weight", (3, 256)),
        ("blk.0.attn_rel_b.weight", (8, 256)),
        ("token_types.weight", (2, 256)),
        ("position_embd.weight", (64, 256)),
        ("v.blk.0.attn_q.weight", (4, 256)),
        ("mm.input_projection.weight", (4, 256)),
    ],
)
def test_small_or_sensitive_tensors_are_kept(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    assert types(tmp_path, "Q4_0", {name: shape})[name] == "F16"


@pytest.mark.parametrize(
    ("kind", "columns", "chosen"),
    [
        ("Q4_K_M", 256, "Q4_K"), ("Q4_K_M", 96, "Q5_0"), ("Q5_K_M", 96, "Q5_1"), ("Q6_K", 96, "Q8_0"),
        ("Q2_K", 96, "Q4_0"), ("IQ4_XS", 96, "IQ4_NL"), ("Q4_K_M", 48, "F16"), ("Q8_0", 48, "F16"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fill_blocks_get_a_type_of_smaller_blocks(
    kind: str, columns: int, chosen: str, tmp_path: Path
) -> None:
    name = "blk.0.ffn_up.weight"
    assert types(tmp_path, kind, {name: (2, columns), "output.weight": (2, 256)})[name] == chosen


def test_the_output_gets_six_bits_and_so_do_tied_embeddings(tmp_path: Path) -> None:
    both = {"token_embd.weight": (4, 256), "output.weight": (4, 256)}
    assert types(tmp_path, "Q4_K_M", both) == {"output.weight": "Q6_K", "token_embd.weight": "Q4_K"}
    assert types(tmp_path, "Q4_K_M", {"token_embd.weight": (4, 256)}) == {"token_embd.weight": "Q6_K"}


def test_attention_beside_eight_experts_gets_more_bits(tmp_path: Path) -> None:
    given = {f"blk.0.attn_{part}.weight": (2, 256) for part in ("q", "k", "v", "output")}
    for kind, mostly in (("Q4_K_M", "Q4_K"), ("Q4_K_S", "Q4_K"), ("Q8_0", "Q8_0")):
        chosen = types(tmp_path, kind, given | {"output.weight": (2, 256)}, expert_count=8)
        found = [chosen[name] for name in given]
        assert found == [mostly, "Q8_0", "Q8_0", "Q5_K" if mostly == "Q4_K" else "Q8_0"]


def test_experts_become_mxfp4_and_the_rest_gets_eight_bits(tmp_path: Path) -> None:
    given = {"blk.0.ffn_up_exps.weight": (4, 2, 256), "blk.0.attn_q.weight": (2, 256)}
    chosen = types(tmp_path, "mxfp4", given, expert_count=4)
    assert chosen == {"blk.0.attn_q.weight": "Q8_0", "blk.0.ffn_up_exps.weight": "MXFP4"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("q4_K_M", FileType.Q4_K_M), ("Q4_K", FileType.Q4_K_M), (" f16 ", FileType.F16),
        ("MXFP4", FileType.MXFP4_MOE), ("q3_k", FileType.Q3_K_M), ("bf16", FileType.BF16),
    ],
)  # fmt: skip
def test_types_are_named_in_any_case(text: str, kind: FileType) -> None:
    assert file_type_of(text) is kind


@pytest.mark.parametrize("text", ["IQ2_XXS", "Q9", "", "F64"])
def test_an_unknown_type_is_refused_with_a_list_of_the_known(text: str) -> None:
    with pytest.raises(
        RequestError, match=r"unsupported quantization type '.*' - supported types are F32, F16"
    ):
        file_type_of(text)


def test_of_audio_towers_only_the_layers_of_models_that_transcribe_are_quantised(tmp_path: Path) -> None:
    tensors = {
        "a.blk.0.attn_v.weight": (4, 256), "a.blk.0.ffn_down.weight": (4, 256),
        "a.conv1d.1.weight": (4, 8, 3), "a.position_embd.weight": (4, 256), "a.blk.0.ln1.weight": (256,),
        "blk.0.cross_attn_q.weight": (4, 256),
    }  # fmt: skip
    chosen = types(tmp_path, "Q4_K_S", tensors, "whisper")
    assert {name: kind for name, kind in chosen.items() if kind != "F16"} == {
        "a.blk.0.attn_v.weight": "Q4_K",
        "a.blk.0.ffn_down.weight": "Q4_K",
        "blk.0.cross_attn_q.weight": "Q4_K",
    }
    other = types(tmp_path, "Q4_K_S", tensors)
    assert other["a.blk.0.attn_v.weight"] == "F16"
