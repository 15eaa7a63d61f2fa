"""Every block of Python and shell in the README and in docs/ runs as it stands.

Examples use the default port, but the server of the tests listens on another one. Puna and Ollama's client
are redirected by their environment, everything else by `redirect/sitecustomize.py` and our own `curl`. Python
runs in this process, which has already imported the modules of the examples. A block that cannot run here
says why in a comment before it:

    <!-- not run: takes a quarter of an hour -->
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import puna
from tests.e2e.servers import Server, add_model, environment, running
from tests.scripted import pieces_of, trigger, write_scripted
from tests.tiny.adapters import TinyAdapter
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?^```(?P<language>python|sh)\n(?P<code>.*?)^```$", re.M | re.S
)
PICTURE = re.compile(r"^\| !\[\]\((?P<picture>.+?)\) \| (?P<question>.+?) \| `(?P<answer>.+?)` \|$", re.M)
REDIRECT = Path(__file__).parent / "redirect"


@dataclass(frozen=True)
class Example:
    name: str  # README.md:12
    language: str
    code: str
    excuse: str | None


def examples() -> Iterator[Example]:
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("code"))
            yield Example(f"{page.name}:{line}", found["language"], found["code"], found["why"])


#: Answers of a model with tools: a call for the weather, then a sentence about the result.
CALLING = ['<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', "It is sunny."]
CALLING_TEMPLATE = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}{% if tools %}<tool_call>{% endif %}"
    f"{{% if messages[-1].role == 'tool' %}}{trigger(1)}{{% else %}}{trigger(0)}{{% endif %}}"
)


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calling") / "calling.gguf"
    return write_scripted(path, list(map(pieces_of, CALLING)), template=CALLING_TEMPLATE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, calling: Path) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("models")) as started:
        add_model(started, "qwen3", calling)
        yield started


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the files that examples name: a model, adapters, Modelfiles, pictures."""
    folder = tmp_path_factory.mktemp("named")
    tiny_llama_gguf(folder / "model.gguf")
    shutil.copy(folder / "model.gguf", folder / "Llama-3.2-1B-Instruct-Q4_K_M.gguf")
    (folder / "Modelfile").write_text("FROM ./model.gguf\n")
    style, names = TinyAdapter(("q_proj",), seed=1), {"q_proj": "attn_q"}
    style.write_gguf(folder / "style.gguf", "llama", TinyLlama().build(), names)
    TinyAdapter(("down_proj",), seed=2).write_peft(folder / "tone", TinyLlama().build())
    modelfile = "FROM ./model.gguf\nADAPTER ./style.gguf\nADAPTER ./tone 0.5\n"
    (folder / "Modelfile.tuned").write_text(modelfile)
    shutil.copytree(ROOT / "docs" / "pictures", folder / "docs" / "pictures")
    return folder


@pytest.fixture
def place(tmp_path: Path, named: Path) -> Path:
    return shutil.copytree(named, tmp_path, dirs_exist_ok=True)


def example_environment(server: Server, place: Path) -> dict[str, str]:
    port = server.url.rpartition(":")[2]
    tools = place / "bin"
    tools.mkdir()
    _script(tools / "puna", f'exec "{sys.executable}" -m puna "$@"')
    # The commands of targets are tested elsewhere; here the target must exist.
    _script(tools / "make", f'exec /usr/bin/make -C "{ROOT}" --dry-run --silent "$@" > /dev/null')
    if curl := shutil.which("curl"):
        _script(tools / "curl", f'exec "{curl}" "${{@//127.0.0.1:11434/127.0.0.1:{port}}}"')
    return environment(server.models, PUNA_HOST=f"127.0.0.1:{port}", OLLAMA_HOST=f"127.0.0.1:{port}") | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REDIRECT),
        "EXAMPLE_PORT": port,
    }


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def run_python(code: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    # Restored at the end, because the next line replaces it.
    monkeypatch.setattr(socket, "socket", socket.socket)
    runpy.run_path(str(REDIRECT / "sitecustomize.py"))
    exec(compile(code, "<stdin>", "exec", dont_inherit=True), {"__name__": "__main__"})


@pytest.mark.samples
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            example, id=example.name, marks=pytest.mark.skip(example.excuse) if example.excuse else ()
        )
        for example in examples()
    ],
)
def test_example_runs_as_it_stands(
    example: Example, server: Server, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = example_environment(server, place)
    if example.language == "python":
        monkeypatch.chdir(place)
        run_python(example.code, env, monkeypatch)
        return
    done = subprocess.run(
        ["bash", "-euo", "pipefail"], input=example.code, env=env, cwd=place, timeout=240,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{example.code}\n{done.stdout}\n{done.stderr}"


def test_questions_about_pictures_are_answered_as_documented() -> None:
    """Check every row of the table of pictures, questions and answers."""
    rows = PICTURE.findall((ROOT / "docs" / "vision.md").read_text())
    assert len({picture for picture, *_ in rows}) == 3
    with puna.load("demo-vision") as model:
        for picture, question, answer in rows:
            message = {"role": "user", "content": question, "images": [ROOT / "docs" / picture]}
            assert model.chat([message], temperature=0, num_predict=30).text == answer, question


def test_examples_of_both_languages_are_found() -> None:
    found = list(examples())
    assert {example.language for example in found} == {"python", "sh"}
    assert sum(example.excuse is None for example in found) >= 6
