"""The sections of `puna show`."""

from __future__ import annotations

from typing import Any

from puna.cli import manage

REPLY: dict[str, Any] = {
    "details": {"family": "llama", "parameter_size": "3.2B", "quantization_level": "Q4_K_M"},
    "model_info": {
        "general.architecture": "llama",
        "general.parameter_count": 3212749888,
        "llama.context_length": 131072,
        "llama.embedding_length": 3072,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.tokens": ["!", '"', "#", "$", "%", "&"],
        "tokenizer.ggml.add_bos_token": True,
    },
}


def test_the_model_section_is_printed_as_specified() -> None:
    assert manage.overview(REPLY) == (
        "  Model\n"
        "    architecture        llama\n"
        "    parameters          3.2B\n"
        "    context length      131072\n"
        "    embedding length    3072\n"
        "    quantization        Q4_K_M\n"
        "\n"
    )


def test_other_sections_are_shown_unless_empty() -> None:
    reply = REPLY | {
        "requires": "0.14.0",
        "projector_info": {
            "general.architecture": "clip",
            "general.parameter_count": 311_890_432,
            "clip.vision.embedding_length": 1024,
            "clip.vision.projection_dim": 768,
        },
        "capabilities": ["completion", "tools"],
        "parameters": (
            'stop                           "<|im_end|>"\ntemperature                    0.7\nstop  "a b"'
        ),
        "system": "Be brief.",
        "license": "\nMIT License\n\nCopyright (c) 2026\nPermission is hereby granted\n",
    }
    first, *others = manage.overview(reply).split("\n\n")
    assert first.splitlines()[-1] == "    requires            0.14.0"
    assert others == [
        "  Capabilities\n    completion\n    tools",
        "  Projector\n    architecture        clip\n    parameters          311.89M\n"
        "    embedding length    1024\n    dimensions          768",
        '  Parameters\n    stop           "<|im_end|>"\n    temperature    0.7\n    stop           "a b"',
        "  System\n    Be brief.",
        "  License\n    MIT License\n    Copyright (c) 2026\n    ...",
        "",
    ]


def test_verbose_adds_metadata_in_order_and_tensors() -> None:
    reply = REPLY | {"tensors": [{"name": "token_embd.weight", "type": "Q6_K", "shape": [3072, 128256]}]}
    text = manage.overview(reply, verbose=True)
    names = [line.split()[0] for line in text.split("  Metadata\n")[1].split("\n\n")[0].split("\n")]
    assert names == sorted(REPLY["model_info"])
    assert "    tokenizer.ggml.add_bos_token    true\n" in text
    assert "    llama.rope.freq_base            500000\n" in text
    assert "  Tensors\n    token_embd.weight    Q6_K    [3072 128256]\n" in text


def test_arrays_are_truncated() -> None:
    assert manage.value_text([1, 2, 3]) == "[1, 2, 3]"
    assert manage.value_text(list(range(100))) == "[0, 1, 2, 3 ...+96 more]"
    assert manage.value_text(["a long piece of text", "b"]) == "[a long piece of text ...+1 more]"
    assert manage.value_text(None) == ""


def test_a_reply_without_a_model_file_shows_nothing() -> None:
    assert manage.overview({"model_info": {}, "details": {}}) == ""
