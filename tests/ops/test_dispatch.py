"""The choice of a backend, and the equal signatures of all backends."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from puna.ops import Backend, backend_named
from tests.processors import NOT_BUILT

ABSTRACT = sorted(Backend.__abstractmethods__)


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PUNA_OPS", "OLLAMA_OPS")}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=False
    )


def parameters(function: object) -> list[tuple[str, object]]:
    """Return names and defaults of parameters, which callers rely on."""
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(parameter.name, parameter.default) for parameter in found if parameter.name != "self"]


@pytest.mark.parametrize("name", ABSTRACT)
def test_all_backends_have_the_declared_operations(name: str) -> None:
    declared = getattr(Backend, name)
    assert declared.__doc__, "the declaration says what it does"
    assert parameters(getattr(backend_named("reference"), name)) == parameters(declared)
    pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    found = getattr(backend_named("cpu"), name)
    if type(found).__module__ == "nanobind":  # the extension's functions have no Python signature
        described = found.__doc__.split(" -> ")[0]
        names = [part.split(":")[0].strip() for part in described[described.index("(") + 1 : -1].split(", ")]
        assert names == [parameter for parameter, _ in parameters(declared)]
    else:
        assert parameters(found) == parameters(declared)


CHOSEN = "from puna.ops import default_backend; print(default_backend().name)"


def test_the_reference_can_be_chosen() -> None:
    done = in_new_process(CHOSEN, PUNA_OPS="reference")
    assert done.stdout.strip() == "reference"
    assert "Warning" not in done.stderr


def test_the_reference_replaces_a_missing_extension_and_warns_once() -> None:
    code = "import sys; sys.modules['puna._native'] = None\nimport puna.sample\n" + CHOSEN + "\n" + CHOSEN
    done = in_new_process(code)
    assert done.stdout.split() == ["reference"] * 2, done.stderr
    assert done.stderr.count("C++ kernels are missing") == 1
    assert "PUNA_OPS=reference" in done.stderr


def test_an_unknown_backend_is_refused() -> None:
    done = in_new_process(CHOSEN, PUNA_OPS="cudnn")
    assert done.returncode != 0
    assert "'cudnn' is not a backend; use one of reference, cpu" in done.stderr


@pytest.mark.parametrize(("level", "status"), [("avx1024", 1), ("portable", 0), ("", 0)])
def test_kernels_that_do_not_exist_are_refused_by_name(level: str, status: int) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT)
    run = in_new_process(CHOSEN, PUNA_CPU=level)
    assert run.returncode == status, run.stderr
    if status:
        assert "PUNA_CPU: 'avx1024' names no kernels that this processor runs; use one of" in run.stderr
        assert "portable" in run.stderr
