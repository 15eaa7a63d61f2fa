"""`puna create` from a published model's folder, `puna convert` and `puna quantize`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from puna.gguf import GGMLType, open_gguf
from tests.cli.shell import Shell
from tests.convert.checkpoints import saved
from tests.convert.jina import TASKS, save_jina3
from tests.model.models.parity import original
from tests.tiny.encoders import TinyJinaBertV3
from tests.tiny.llama import CHATML, SPECIALS, WORDS, TinyLlama, vocabulary
from tests.tiny.vision.llava import TinyLlava
from tests.tiny.words import save_words
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model in several files, with the chat template in its own file."""
    folder = saved(
        tmp_path_factory.mktemp("published") / "Tiny", original(TinyLlama()), max_shard_size="100KB"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").write_text(settings.pop("chat_template"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def log_probabilities_after(text: str) -> tuple[str, torch.Tensor] | None:
    """Return `text` and the 20 highest log-probabilities after it; None if a special token is likeliest."""
    ids = {token: id for id, token in enumerate(vocabulary())}
    prompt = [ids["<|begin|>"], ids[text.replace(" ", "Ġ")]]
    with torch.inference_mode():
        logits = original(TinyLlama())(torch.tensor([prompt])).logits[0, -1]
    best = torch.log_softmax(logits, dim=-1).sort(descending=True)
    return None if vocabulary()[best.indices[0]] in SPECIALS else (text, best.values[:20])


def test_model_created_from_a_published_folder_matches_its_reference(shell: Shell, published: Path) -> None:
    assert len(list(published.glob("*.safetensors"))) > 1
    made = shell.run("create", "published", "-f", "-", stdin=f"FROM {published}\nPARAMETER temperature 0")
    assert made.returncode == 0, made.stderr
    assert "converting model" in made.stderr
    try:
        assert shell.out("show", "published", "--template") == CHATML
        assert len(shell.out("run", "published", "hello", "--num-predict", "5")) > 1
        text, expected = next(text for text in map(log_probabilities_after, WORDS) if text is not None)
        request = {
            "model": "published", "prompt": text, "raw": True, "stream": False, "logprobs": True,
            "top_logprobs": 20, "options": {"temperature": 0, "num_predict": 1},
        }  # fmt: skip
        answer = httpx.post(
            f"http://127.0.0.1:{shell.port}/api/generate", json=request, timeout=PATIENCE_S
        ).json()
        found = torch.tensor([top["logprob"] for top in answer["logprobs"][0]["top_logprobs"]])
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)
    finally:
        shell.out("rm", "published")


def test_folder_that_cannot_be_converted_is_refused_before_copying(
    shell: Shell, published: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    made = shell.run("create", "published", "-f", "-", stdin=f"FROM {tmp_path}")
    assert made.returncode == 1
    assert "unsupported architecture 'NoSuchModel'" in made.stderr
    assert "copying" not in made.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu', but a file of architecture llama can only have"),
        ({"num_hidden_layers": 9}, "layers"),
        ({"attention_multiplier": 2.0}, "'attention_multiplier' is 2.0, which no file"),
    ],
)
def test_unsupported_settings_are_refused_before_copying(
    shell: Shell, published: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    folder = copy_with(published, tmp_path, settings)
    made = shell.run("create", "published", "-f", "-", stdin=f"FROM {folder}")
    assert made.returncode == 1
    assert words in made.stderr
    assert "gathering" not in made.stderr


def test_unsupported_vision_tower_is_refused_before_copying(shell: Shell, tmp_path: Path) -> None:
    config = TinyLlava(TinyLlama())
    folder = config.save(tmp_path / "seeing", original(config))
    folder = copy_with(folder, tmp_path, {"projector_hidden_act": "relu"})
    made = shell.run("create", "seeing", "-f", "-", stdin=f"FROM {folder}")
    assert made.returncode == 1
    assert "'projector_hidden_act' is 'relu'" in made.stderr
    assert "gathering" not in made.stderr


def copy_with(folder: Path, parent: Path, settings: dict[str, Any]) -> Path:
    """Copy a published model's folder with changed settings; return the copy."""
    copy = Path(shutil.copytree(folder, parent / "copy"))
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return copy


def test_convert_and_quantize_write_files(shell: Shell, published: Path, tmp_path: Path) -> None:
    whole, small = tmp_path / "whole.gguf", tmp_path / "small.gguf"
    shell.out("convert", str(published), str(whole), "--type", "F32")
    done = shell.run("quantize", str(whole), str(small), "--type", "q8_0")
    assert done.returncode == 0, done.stderr
    assert "quantizing whole.gguf to Q8_0" in done.stderr
    with open_gguf(small) as file:
        assert file.tensor("blk.1.ffn_up.weight").type is GGMLType.Q8_0
        assert file.get("tokenizer.ggml.pre") == "gpt-2"
    refused = shell.run("quantize", str(whole), str(whole))
    assert "choose another name" in refused.stderr
    twice = shell.run("quantize", str(small), str(tmp_path / "smaller.gguf"), "--type", "q4_0")
    assert "as Q8_0 already" in twice.stderr
    assert "'puna quantize --again'" in twice.stderr


def test_folder_runs_directly_and_is_converted_once(shell: Shell, published: Path) -> None:
    words = ("run", str(published), "hello", "--temperature", "0", "--num-predict", "5")
    first = shell.run(*words)
    assert first.returncode == 0, first.stderr
    assert "converting Tiny's model" in first.stderr
    assert "Added Tiny.gguf as model 'tiny:" in first.stderr
    again = shell.run(*words)
    assert (again.stdout, again.stderr) == (first.stdout, "")
    name = re.search(r"'(tiny:\w+)'", first.stderr)
    assert name is not None
    shell.out("rm", name[1])


def test_existing_files_are_overwritten_only_with_force(
    shell: Shell, published: Path, tmp_path: Path
) -> None:
    target, tower = tmp_path / "whole.gguf", tmp_path / "mmproj-whole.gguf"
    convert, quantize = ("convert", str(published)), ("quantize", "/nowhere.gguf")
    for file, commands in ((tower, (convert,)), (target, (convert, quantize))):
        file.write_bytes(b"precious")
        for words in commands:
            refused = shell.run(*words, str(target))
            assert refused.returncode == 1
            assert f"{file} exists; use --force to overwrite it" in refused.stderr
        assert file.read_bytes() == b"precious"
        file.unlink()
    target.write_bytes(b"precious")
    shell.out(*convert, str(target), "--force")
    assert target.read_bytes().startswith(b"GGUF")


def test_published_adapters_are_written_beside_the_model(shell: Shell, tmp_path: Path) -> None:
    folder = save_jina3(tmp_path / "Jina", original(TinyJinaBertV3()))
    save_words(folder)
    done = shell.run("convert", str(folder), str(tmp_path / "jina.gguf"))
    assert done.returncode == 0, done.stderr
    for task in TASKS:
        assert f"lora-{task}-jina.gguf: " in done.stderr
        assert (tmp_path / f"lora-{task}-jina.gguf").is_file()


def test_convert_ignores_the_named_settings(shell: Shell, tmp_path: Path) -> None:
    folder = saved(tmp_path / "Tiny", original(TinyLlama()))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_sharpness": 2.0, "colour": "blue"}))
    refused = shell.run("convert", str(folder), str(tmp_path / "m.gguf"))
    assert refused.returncode
    assert "--ignore attention_sharpness" in refused.stderr
    done = shell.run("convert", str(folder), str(tmp_path / "m.gguf"), "--ignore", "attention_sharpness")
    assert done.returncode == 0, done.stderr
    assert "unknown settings, left out of the file: colour" in done.stderr
    assert (tmp_path / "m.gguf").is_file()


def test_folder_that_needs_options_is_refused_with_the_command_to_type(shell: Shell, tmp_path: Path) -> None:
    folder = saved(tmp_path / "Tiny", original(TinyLlama()))
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"attention_sharpness": 2.0, "rope_twist": 3.0})
    )
    refused = shell.run("run", str(folder), "hello")
    for _ in range(2):  # each refusal adds one setting and keeps the earlier ones
        assert refused.returncode == 1
        command = re.search(r"`puna (convert .*)`", refused.stderr)
        assert command is not None, refused.stderr
        words = command[1].replace("FOLDER", str(folder)).replace("OUT", str(tmp_path / "m")).split()
        refused = shell.run(*words)
    assert refused.returncode == 0, refused.stderr
    assert (tmp_path / "m.gguf").is_file()


def test_folder_of_a_vision_model_runs_with_its_vision_tower(shell: Shell, tmp_path: Path) -> None:
    tiny = TinyLlava(TinyLlama())
    folder = tiny.save(tmp_path / "Sees", tiny.build())
    done = shell.run("run", str(folder), "hello", "--temperature", "0", "--num-predict", "1")
    assert done.returncode == 0, done.stderr
    assert "converting Sees's vision tower" in done.stderr
    assert "vision" in shell.out("show", "sees")
    shell.out("rm", "sees")
