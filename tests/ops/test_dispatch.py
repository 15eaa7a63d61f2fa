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


BACKENDS = """
import sys
from puna import ops
ops._DRIVERS = {drivers}
print([each.name for each in ops.backends()], ops.gpu_problem(), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("drivers", "environment"),
    [
        ((), {}),
        (("/dev/null",), {"CUDA_VISIBLE_DEVICES": "-1"}),
        (("/dev/null",), {"CUDA_VISIBLE_DEVICES": ""}),
        (("/dev/null",), {"PUNA_OPS": "cpu"}),
    ],
    ids=["no driver", "hidden", "none visible", "chosen"],
)
def test_torch_is_not_imported_where_no_gpu_is_used(
    drivers: tuple[str, ...], environment: dict[str, str]
) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    done = in_new_process(BACKENDS.format(drivers=drivers), **environment)
    assert done.stdout.strip() == "['cpu']  False", done.stderr


@pytest.mark.slow
def test_a_gpu_that_cannot_be_used_is_left_out_with_the_reason() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton", reason="Triton is not installed: it has no build for this machine")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU that can be used")
    pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    done = in_new_process(BACKENDS.format(drivers=("/dev/null",)))
    assert done.stdout.startswith("['cpu'] torch "), done.stderr
    assert done.stdout.endswith(" True\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("", "UnavailableError: PUNA_OPS=gpu: torch "),
        (
            "cuda:1",
            "OptionError: PUNA_GPU_DEVICE: models use all GPUs; CUDA_VISIBLE_DEVICES=1 is for this one alone",
        ),
        ("tpu", "OptionError: PUNA_GPU_DEVICE: 'tpu' is no device; use cuda or cpu"),
        pytest.param(
            "mps", "OptionError: PUNA_GPU_DEVICE: there are kernels for cuda devices and cpu, not for 'mps'",
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_a_chosen_gpu_that_cannot_be_used_is_an_error(device: str, error: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton", reason="Triton is not installed: it has no build for this machine")
    if not device and torch.cuda.is_available():
        pytest.skip("there is a GPU that can be used")
    done = in_new_process(CHOSEN, PUNA_OPS="gpu", PUNA_GPU_DEVICE=device)
    assert done.returncode != 0
    assert error in done.stderr


@pytest.mark.parametrize(("level", "status"), [("avx1024", 1), ("portable", 0), ("", 0)])
def test_kernels_that_do_not_exist_are_refused_by_name(level: str, status: int) -> None:
    pytest.importorskip("puna._native", reason=NOT_BUILT)
    run = in_new_process(CHOSEN, PUNA_CPU=level)
    assert run.returncode == status, run.stderr
    if status:
        assert "PUNA_CPU: 'avx1024' names no kernels that this processor runs; use one of" in run.stderr
        assert "portable" in run.stderr


STAND_INS = """
from puna import ops
print([(each.name, each.device, each.available_memory()) for each in ops.backends()[:-1]])
"""


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param("6", [("gpu", "GPU 0", 6_000_000_000)], marks=pytest.mark.thorough),
        ("6,0.5", [("gpu", "GPU 0", 6_000_000_000), ("gpu", "GPU 1", 500_000_000)]),
    ],
)
def test_the_processor_stands_in_for_gpus_of_any_memory(memory: str, expected: list[object]) -> None:
    pytest.importorskip("torch")
    done = in_new_process(STAND_INS, PUNA_GPU_DEVICE="cpu", PUNA_GPU_MEMORY_GB=memory)
    assert done.stdout.strip() == str(expected), done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("6 GiB", "must be numbers of gigabytes, as in 6 or 6,12"),
        ("6,-1", "must be up to 16 numbers of gigabytes above 0"),
        (",".join(["6"] * 17), "must be up to 16 numbers of gigabytes above 0"),
        ("nan", "must be up to 16 numbers of gigabytes above 0"),
    ],
)
def test_limits_of_a_gpus_memory_are_numbers_of_gigabytes(text: str, problem: str) -> None:
    pytest.importorskip("torch")
    from puna.ops import gpu

    with pytest.raises(ValueError, match=problem):
        gpu._sizes(text)
