"""Every block of Python and shell in the README and in docs/ runs, as it stands.

Examples speak to the default port; here a server listens on another one, and what the examples start is led
there: Puna and Ollama's client by their environment, everything else by `redirect/sitecustomize.py` and a
`curl` of our own. A block that cannot run here says why in a comment before it:

    <!-- not run: takes a quarter of an hour -->
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import puna
from tests.e2e.servers import Server, add_model, environment, running
from tests.scripted import pieces_of, trigger, write_scripted
from tests.tiny import TinyLlama, tiny_llama_gguf
from tests.tiny_adapters import TinyAdapter

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


#: What a model that calls tools says: it asks for the weather, and makes a sentence of what it is told.
CALLING = ['<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', "It is sunny."]
CALLING_TEMPLATE = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}{% if tools %}<tool_call>{% endif %}"
    f"{{% if messages[-1].role == 'tool' %}}{trigger(1)}{{% else %}}{trigger(0)}{{% endif %}}"
)


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calling") / "tools.gguf"
    return write_scripted(path, list(map(pieces_of, CALLING)), template=CALLING_TEMPLATE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, calling: Path) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("models")) as started:
        add_model(started, "qwen3", calling)
        yield started


@pytest.fixture
def place(tmp_path: Path, calling: Path) -> Path:
    """A folder with what the examples name: a model file, adapters, Modelfiles, pictures."""
    tiny_llama_gguf(tmp_path / "model.gguf")
    shutil.copy(tmp_path / "model.gguf", tmp_path / "Llama-3.2-1B-Instruct-Q4_K_M.gguf")
    (tmp_path / "Modelfile").write_text("FROM ./model.gguf\n")
    shutil.copy(calling, tmp_path / "tools.gguf")
    style, names = TinyAdapter(("q_proj",), seed=1), {"q_proj": "attn_q"}
    style.write_gguf(tmp_path / "style.gguf", "llama", TinyLlama().build(), names)
    TinyAdapter(("down_proj",), seed=2).write_peft(tmp_path / "tone", TinyLlama().build())
    modelfile = "FROM ./model.gguf\nADAPTER ./style.gguf\nADAPTER ./tone 0.5\n"
    (tmp_path / "Modelfile.tuned").write_text(modelfile)
    for picture in (ROOT / "docs" / "pictures").glob("*.png"):
        shutil.copy(picture, tmp_path)
    return tmp_path


def surroundings(server: Server, place: Path) -> dict[str, str]:
    port = server.url.rpartition(":")[2]
    tools = place / "bin"
    tools.mkdir()
    _script(tools / "puna", f'exec "{sys.executable}" -m puna "$@"')
    # What a target runs is tested elsewhere; here it must exist.
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


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_an_example_runs_as_it_stands(example: Example, server: Server, place: Path) -> None:
    if example.excuse:
        pytest.skip(example.excuse)
    command = [sys.executable, "-"] if example.language == "python" else ["bash", "-euo", "pipefail"]
    done = subprocess.run(
        command, input=example.code, env=surroundings(server, place), cwd=place, timeout=240,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{example.code}\n{done.stdout}\n{done.stderr}"


def test_pictures_in_the_docs_are_answered_as_they_say() -> None:
    """Every row of the table that has a picture, a question about it and the answer."""
    rows = PICTURE.findall((ROOT / "docs" / "vision.md").read_text())
    assert len({picture for picture, *_ in rows}) == 3
    with puna.load("demo-vision") as model:
        for picture, question, answer in rows:
            message = {"role": "user", "content": question, "images": [ROOT / "docs" / picture]}
            assert model.chat([message], temperature=0, num_predict=30).text == answer, question


def test_there_are_examples() -> None:
    found = list(examples())
    assert {example.language for example in found} == {"python", "sh"}
    assert sum(example.excuse is None for example in found) >= 6
