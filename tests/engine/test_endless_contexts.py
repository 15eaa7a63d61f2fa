"""The longest representable contexts, in files and requests, are planned within memory or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.case import SANITIZED
from tests.fuzz.invented import OWN, TRANSCRIBING, invented
from tests.gguf import gguf_bytes

LONGEST = 2**31 - 1
EVERY = [*OWN, *TRANSCRIBING]
#: The address space of a process that loads a model, and the memory it may take beyond a small context's.
MAPPED, TAKEN = 8 << 30, 32 << 20

#: Loads and uses each file in a process of its own, and prints the outcome and the memory taken.
LOAD = """
import json, os, resource, sys
import numpy, psutil, puna, puna.library.loading
from puna.chat.templates.renderer.client import Renderer
from puna.errors import RequestError
Renderer.start = lambda self: None  # hundreds of processes ahead of requests, which render no template
for path in sys.argv[3:]:
    reader, writer = os.pipe()
    if not (child := os.fork()):
        before = psutil.Process().memory_info().rss
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
        try:
            with puna.load(path, num_ctx=int(sys.argv[2]) or None) as model:
                hears = "/whisper/" in path
                try:
                    if hears:
                        model.transcribe(numpy.zeros(16000, numpy.float32))
                    else:
                        model.generate("once upon a time", num_predict=2, temperature=0)
                except RequestError:
                    if hears:
                        raise
                    model.embed(["once upon a time"])
            said = "used"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        os.write(writer, json.dumps([path, said[:1000], taken]).encode())
        os._exit(0)
    os.close(writer)
    print(os.fdopen(reader).read() or json.dumps([path, f"died, {os.waitpid(child, 0)[1]}", 0]))
"""


def _written(folder: Path, architecture: str, context: int | None) -> Path:
    """Write a small model, whose context is small or the given one."""
    model = invented(architecture)
    if context is not None:
        model.keys[f"{architecture}.context_length"] = context
    (folder / architecture).mkdir(parents=True)
    return gguf_bytes.save(folder / architecture, model.encode())


def _ends(paths: list[Path], context: int) -> dict[str, tuple[str, int]]:
    """Return the outcome of loading and using each architecture, and the bytes it took."""
    command = [sys.executable, "-c", LOAD, str(MAPPED), str(context), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    return {
        Path(path).parent.name: (said, taken)
        for path, said, taken in map(json.loads, done.stdout.splitlines())
    }


#: Architectures with a table as long as the context, and the error about it.
TABLES = {
    **dict.fromkeys(("bert", "gpt2", "starcoder", "whisper"), "there are only 96 position vectors"),
    **dict.fromkeys(("bloom", "jais", "jina-bert-v2", "mpt", "refact"), "of at most 131072 tokens"),
}

#: Those with tables, and each way to remember: `make test-thorough` loads the others.
SAMPLE = [
    *TABLES, "arwkv7", "bailingmoe3", "deepseek2", "deepseek32", "deepseek4", "falcon-h1", "gemma3",
    "gemma3n", "gemma4", "glm-dsa", "glm5-next", "gpt-oss", "granitehybrid", "hy_v4", "jamba",
    "kimi-linear", "lfm2", "llama", "llama4", "mamba", "mamba2", "mimo2", "minimax-m3", "mllama",
    "modern-bert", "nemotron_h", "plamo3", "qwen35", "qwen3next", "qwen4exp", "rwkv6", "rwkv7", "step35",
    "t5",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("PUNA_OPS") == "gpu", reason="caches on a GPU take address space of its driver"
)
@pytest.mark.skipif(SANITIZED, reason="sanitizers take terabytes of address space")
@pytest.mark.parametrize(
    ("context", "names"),
    [
        pytest.param(0, EVERY, marks=pytest.mark.thorough, id="its own"),
        pytest.param(20_000_000, EVERY, marks=pytest.mark.thorough, id="20 million"),
        pytest.param(LONGEST, EVERY, marks=pytest.mark.thorough, id="the longest"),
        pytest.param(LONGEST, SAMPLE, id="the longest, of some"),
    ],
)
def test_no_model_takes_memory_in_proportion_to_its_context(
    tmp_path: Path, context: int, names: list[str]
) -> None:
    usual = _ends([_written(tmp_path / "modest", name, None) for name in names], 0)
    assert {said for said, _ in usual.values()} == {"used"}
    ends = _ends([_written(tmp_path / "boundless", name, LONGEST) for name in names], context)
    assert set(ends) == set(names)
    wrong = {
        name: (said, taken)
        for name, (said, taken) in ends.items()
        if taken > usual[name][1] + TAKEN
        or (TABLES[name] not in said if name in TABLES else not _is_fine(said, asked=context > 0))
    }
    assert wrong == {}


def _is_fine(said: str, *, asked: bool) -> bool:
    """Whether a model ran, or was refused because the requested context is too long."""
    refused = said.startswith(("InsufficientMemoryError: ", "RequestError: ")) and "num_ctx" in said
    return said == "used" or (asked and refused)
