"""Prompts that outlive their engine in a folder, whatever its state."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import puna
from puna.engine import prompt_memory
from puna.engine.engine import Engine
from puna.engine.prompt_memory import PromptFolder
from puna.engine.room import EngineSizes
from puna.kvcache.saved import Saved
from puna.model.load import LoadedModel, load_model
from puna.options import AdapterFile, AdapterScale, Options
from puna.protocol import Chunk, Done, Event, Failed, Generate
from tests.tiny.adapters import TinyAdapter
from tests.tiny.lfm2 import TinyLfm2, tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

CONFIG = TinyLlama(context=2048)
PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 250, 400)]

Answer = tuple[list[int], int]  # tokens, and the number of cached prompt tokens


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("model") / "model.gguf", CONFIG)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "prompts"
    monkeypatch.setenv("PUNA_PROMPT_CACHE", str(folder))
    return folder


@contextmanager
def running(loaded: LoadedModel, **settings: Any) -> Iterator[Callable[..., Answer]]:
    """Run an engine on its own thread and close it afterwards; yield a function that answers a prompt."""
    engine = Engine(loaded, EngineSizes(**{"context": 2048, "parallel": 2, **settings}))
    engine.start()

    def ask(prompt: list[int], linger_s: float = 0.0, **more: Any) -> Answer:
        """Return the answer, when its end was sent; the step that sends it takes `linger_s` longer."""
        ended, events = threading.Event(), []

        def sink(event: Event) -> None:
            events.append(event)
            if isinstance(event, Done | Failed):
                ended.set()
                time.sleep(linger_s)

        options = Options(temperature=0, num_predict=4)
        engine.submit(Generate(id=1, prompt=prompt, options=options, ignore_eos=True, **more), sink)
        assert ended.wait(60)
        assert isinstance(events[-1], Done), events[-1]
        return [token for e in events if isinstance(e, Chunk) for token in e.tokens], events[-1].cached

    try:
        yield ask
    finally:
        engine.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.prompt")) if folder.is_dir() else []


@pytest.fixture(params=["llama", "lfm2"])
def kind(request: pytest.FixtureRequest, path: Path, tmp_path: Path) -> Path:
    """Return a model that remembers everything, and one whose states forget."""
    return (
        path if request.param == "llama" else tiny_lfm2_gguf(tmp_path / "lfm2.gguf", TinyLfm2(context=2048))
    )


def test_a_conversation_continues_after_its_model_was_unloaded(kind: Path, folder: Path) -> None:
    with running(load_model(kind)) as ask:
        answer, _ = ask(PROMPT)
    assert len(files(folder)) == 1
    turn = [*PROMPT, *answer, 7, 8, 9]
    os.environ.pop("PUNA_PROMPT_CACHE")
    with running(load_model(kind)) as ask:
        expected, cached = ask(turn)
        assert cached == 0
    os.environ["PUNA_PROMPT_CACHE"] = str(folder)
    with running(load_model(kind)) as ask:
        found, cached = ask(turn)
    assert found == expected
    assert cached >= len(PROMPT)
    (only,) = files(folder)  # the shorter one is part of it
    assert only.stat().st_mode & 0o077 == 0


def test_a_diverging_prompt_restores_the_common_prefix(path: Path, folder: Path) -> None:
    with running(load_model(path)) as ask:
        ask(PROMPT)
    other = [*PROMPT[:300], *reversed(PROMPT)]
    with running(load_model(path)) as ask:
        assert ask(other)[1] == 300
        assert ask(list(reversed(PROMPT)))[1] == 0
    assert len(files(folder)) == 3


def test_other_adapters_and_models_find_nothing(path: Path, tmp_path: Path, folder: Path) -> None:
    adapter = TinyAdapter(("q_proj",)).write_gguf(
        tmp_path / "a.gguf", "llama", CONFIG.build(), {"q_proj": "attn_q"}
    )
    adapters = [AdapterFile(str(adapter))]
    one, half = [AdapterScale(0)], [AdapterScale(0, scale=0.5)]
    with running(load_model(path, adapters=adapters)) as ask:
        expected = [ask(PROMPT, lora=lora)[0] for lora in ([], one)]
    with running(load_model(path, adapters=adapters)) as ask:
        assert ask(PROMPT, lora=half)[1] == 0
        assert [ask(PROMPT, lora=lora) for lora in ([], one)] == [
            (answer, len(PROMPT) - 1) for answer in expected
        ]
    other = tiny_llama_gguf(tmp_path / "other.gguf", TinyLlama(context=2048, seed=5))
    with running(load_model(other)) as ask:
        assert ask(PROMPT)[1] == 0
    with running(load_model(path), context=1024) as ask:  # its rotation is the same
        assert ask(PROMPT)[1] == len(PROMPT) - 1
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(path.read_bytes())
    os.utime(copied, ns=(1, 1))
    with running(load_model(copied)) as ask:
        assert ask(PROMPT)[1] == 0


def test_a_prompt_is_saved_although_its_engine_closes_with_the_answers_last_step(
    path: Path, folder: Path
) -> None:
    with running(load_model(path)) as ask:
        ask(PROMPT, linger_s=0.3)
    assert len(files(folder)) == 1


@pytest.mark.parametrize(
    "harm", ["cut", "bit", "name", "empty", "tokens", "folder", "gone", "foreign", "pipe", "link", "huge"]
)
def test_damaged_files_are_evaluated_again(path: Path, folder: Path, harm: str) -> None:
    with running(load_model(path)) as ask:
        expected, _ = ask(PROMPT)
    (file,) = files(folder)
    content = file.read_bytes()
    match harm:
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "bit":  # a bit in the middle of the values
            damaged = bytearray(content)
            damaged[len(content) // 2] ^= 0x10
            file.write_bytes(damaged)
        case "name":  # the name of another text or model
            file.rename(file.with_name(("0" if file.name[0] == "f" else "f") + file.name[1:]))
        case "empty":
            file.write_bytes(b"")
        case "tokens":
            tokens = np.array(PROMPT[:8], np.int32).tobytes()
            file.write_bytes(content.replace(tokens, np.array(PROMPT[8:16], np.int32).tobytes()))
        case "folder":
            file.unlink()
            file.mkdir()
        case "pipe":  # nothing ever comes from it
            file.unlink()
            os.mkfifo(file)
        case "link":
            file.symlink_to(file.rename(folder.parent / "elsewhere.prompt"))
        case "huge":  # larger than the limit of the whole folder
            count = 1 << 38
            about = {"tokens": {"dtype": "I32", "shape": [count], "data_offsets": [0, 4 * count]}}
            header = json.dumps(about).encode()
            file.write_bytes(len(header).to_bytes(8, "little") + header)
            os.truncate(file, 8 + len(header) + 4 * count)
        case "gone":
            file.unlink()
            folder.rmdir()
        case "foreign":
            other = PromptFolder(folder, 1 << 30)
            saved = Saved({"0.keys": np.zeros((len(PROMPT), 2, 16), np.float16)}, {"length": [len(PROMPT)]})
            space = file.name.partition("-")[0]
            file.unlink()
            other.write(space, saved, PROMPT)
    with running(load_model(path)) as ask:
        found, cached = ask(PROMPT)
    assert found == expected
    assert cached == 0


def test_an_unwritable_folder_is_not_an_error(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("PUNA_PROMPT_CACHE", str(tmp_path / "file" / "prompts"))
    with running(load_model(path)) as ask:
        assert ask(PROMPT)[1] == 0
    with running(load_model(path)) as ask:
        assert ask(PROMPT)[1] == 0


def test_a_full_disk_is_not_an_error(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prompt_memory, "write_sequence", full)
    with running(load_model(path)) as ask:
        ask(PROMPT)
        ask([*PROMPT, 5, 6])
    assert not files(folder)


def _saved(rows: int) -> Saved:
    return Saved({"0.keys": np.ones((rows, 1, 250), np.float32)}, {"length": [rows]})


def test_the_oldest_files_are_removed_to_make_room(tmp_path: Path) -> None:
    folder = PromptFolder(tmp_path / "prompts", 100_000)
    texts = [[number] * 30 for number in range(3, 8)]
    for age, text in enumerate(texts):
        folder.write("a" * 24, _saved(30), text)
        for file in files(folder.path):
            if file.stat().st_mtime > 1e9:
                os.utime(file, (age, age))
    assert len(files(folder.path)) == 3
    assert sum(file.stat().st_size for file in files(folder.path)) < 100_000
    kept = [text for text in texts if folder.longest("a" * 24, np.array(text, np.int32), whole=True)[0]]
    assert kept == texts[-3:]
    folder.write("a" * 24, _saved(1000), [9] * 1000)  # alone larger than the limit
    assert len(files(folder.path)) == 3


def test_a_prefix_of_another_text_is_removed_and_models_are_kept_apart(tmp_path: Path) -> None:
    folder, other = PromptFolder(tmp_path, 1 << 30), PromptFolder(tmp_path, 1 << 30)
    one, two = "a" * 24, "b" * 24
    folder.write(one, _saved(3), [1, 2, 3])
    other.write(two, _saved(3), [1, 2, 3])
    other.write(one, _saved(5), [1, 2, 3, 4, 5])
    assert len(files(tmp_path)) == 2
    tokens = np.array([1, 2, 3, 4, 9], np.int32)
    assert folder.longest(one, tokens, whole=False)[0] == 4
    assert folder.longest(one, tokens, whole=True) == (0, "")
    count, name = folder.longest(two, tokens, whole=True)
    assert count == 3
    assert folder.read(two, name) is not None
    assert folder.read(one, name) is None  # it belongs to another model, so it cannot be trusted
    assert folder.longest(two, tokens, whole=True) == (0, "")


def test_the_library_remembers_prompts_too(path: Path, folder: Path) -> None:
    text = "once upon a time there was a cat " * 40
    options: Any = {"num_predict": 4, "temperature": 0, "ignore_eos": True}
    with puna.load(path, num_ctx=2048) as model:
        first = model.generate(text, **options)
    with puna.load(path, num_ctx=2048) as model:
        again = model.generate(text, **options)
    assert again.text == first.text
    assert again.cached_tokens > 256
