"""Which implementation a process uses, and that they are all called alike."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from puna import ops
from puna.ops import reference

OPERATIONS = [
    "add_rms_norm",
    "attention",
    "embedding",
    "experts",
    "geglu",
    "gelu",
    "layer_norm",
    "linear",
    "linear_many",
    "rms_norm",
    "rope_",
    "route",
    "short_conv",
    "softcap",
    "store_rows",
    "swiglu",
    "temper_",
]


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PUNA_OPS", "OLLAMA_OPS")}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_implementations_have_one_signature(name: str) -> None:
    expected = inspect.signature(getattr(ops, name))
    assert inspect.signature(getattr(reference, name)) == expected
    assert getattr(ops, name).__doc__, "the public function says what it does"
    cpu = pytest.importorskip("puna.ops.cpu", exc_type=ImportError)
    assert inspect.signature(getattr(cpu, name)) == expected


def test_the_reference_can_be_chosen() -> None:
    done = in_new_process("import puna.ops; print(puna.ops.implementation())", PUNA_OPS="reference")
    assert done.stdout.strip() == "reference"
    assert "Warning" not in done.stderr


def test_without_the_extension_the_reference_steps_in_and_says_so_once() -> None:
    code = (
        "import sys; sys.modules['puna._native'] = None\n"
        "import puna.ops, puna.sample, importlib; importlib.import_module('puna.ops')\n"
        "print(puna.ops.implementation())"
    )
    done = in_new_process(code)
    assert done.stdout.strip() == "reference", done.stderr
    assert done.stderr.count("C++ kernels are not available") == 1
    assert "PUNA_OPS=reference" in done.stderr


def test_an_unknown_implementation_is_refused() -> None:
    done = in_new_process("import puna.ops", PUNA_OPS="cudnn")
    assert done.returncode != 0
    assert "'cudnn' is none of reference, cpu" in done.stderr


def test_the_choice_of_a_block_ends_with_it() -> None:
    before = ops.implementation()
    inside = []

    def fail() -> None:
        with ops.use("reference"):
            inside.append(ops.implementation())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == ["reference"]
    assert ops.implementation() == before


@pytest.mark.parametrize(("level", "status"), [("avx1024", 1), ("portable", 0), ("", 0)])
def test_kernels_that_do_not_exist_are_refused_by_name(level: str, status: int) -> None:
    pytest.importorskip("puna._native")
    run = in_new_process("import puna.ops", PUNA_CPU=level)
    assert run.returncode == status, run.stderr
    if status:
        assert "PUNA_CPU: 'avx1024' names no kernels that this processor runs; use one of" in run.stderr
        assert "portable" in run.stderr
