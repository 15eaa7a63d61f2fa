"""`puna doctor`: the report without a server, and on machines in various states."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from puna.cli import doctor, main

GOOD: dict[str, Any] = {
    "puna": "1.0.0",
    "python": {"version": "3.12.1", "path": "/usr/bin/python3"},
    "system": "Linux",
    "processor": {"name": "EPYC", "cores": 8, "logical": 16, "usable": 16, "features": []},
    "gpus": [],
    "gpu_use": {},
    "kernels": {"used": "avx512", "all": ["portable", "avx2", "avx512"], "threads": 8, "memory_nodes": 1},
    "compiler": "g++ 13",
    "memory": {"total": 32 * 10**9, "available": 20 * 10**9},
    "torch": None,
    "store": {"path": "/models", "models": 2, "size": 10**9, "free": 10**11, "problem": None},
    "server": {"url": "http://127.0.0.1:11434", "name": None, "version": None, "process": None},
    "packages": {"numpy": "2.0"},
    "settings": {},
    "problems": [],
    "advice": [],
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PUNA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("PUNA_HOST", "127.0.0.1:9")
    monkeypatch.delenv("PUNA_OPS", raising=False)


def test_the_report_needs_no_server_and_no_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PUNA_NUM_TREADS", "2")
    monkeypatch.setenv("PUNA_KEEP_ALIVE", "tomorrow")
    assert main(["doctor", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert set(report) == set(GOOD)
    assert report["server"] == GOOD["server"] | {"url": "http://127.0.0.1:9"}
    store = report["store"]
    assert (store["path"], store["models"], store["size"]) == (str(tmp_path / "models"), 0, 0)
    assert report["store"]["free"] > 0
    assert report["packages"]["numpy"]
    assert report["settings"]["PUNA_KEEP_ALIVE"] == "tomorrow"
    assert (
        report["problems"][0] == "PUNA_NUM_TREADS is not a setting of Puna (did you mean PUNA_NUM_THREADS?)"
    )
    assert report["problems"][1].startswith("PUNA_KEEP_ALIVE=tomorrow: must be a number of seconds")
    assert not (tmp_path / "models").exists(), "the store was created"
    assert printed.err == ""


def test_text_report_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.split("\n\n")[0].splitlines()]
    assert names == [
        "puna", "python", "system", "processor", "gpus", "kernels", "compiler", "memory", "torch", "store",
        "server", "settings", "packages",
    ]  # fmt: skip


H200 = {
    "name": "NVIDIA H200",
    "memory": 150 * 10**9,
    "architecture": "compute capability 9.0",
    "problem": None,
}
USE = {"torch": "2.11.0", "runtime": "CUDA 13.0", "problem": None, "gpus": [H200]}
CARD = {"name": "NVIDIA H200", "bus": "0000:01:00.0", "driver": "nvidia", "memory": None}


def gpus_line(**state: Any) -> str:
    lines = doctor.as_text(GOOD | state).splitlines()
    return next(line for line in lines if line.startswith("gpus "))


def test_the_report_says_which_gpu_models_use_or_why_none() -> None:
    second = H200 | {"problem": "it is too old"}
    line = gpus_line(gpus=[CARD], gpu_use=USE | {"gpus": [H200, second]})
    assert "150 GB, compute capability 9.0, CUDA 13.0: used;" in line
    assert line.endswith("CUDA 13.0: not used: it is too old")
    assert "the extra gpu is not installed" in gpus_line(gpus=[CARD])
    old = {"torch": "2.11.0", "runtime": "CUDA 13.0", "problem": "its driver is too old", "gpus": []}
    assert "models use the processor: its driver is too old" in gpus_line(gpus=[CARD], gpu_use=old)
    assert gpus_line() == "gpus       none"


@pytest.mark.parametrize(
    ("state", "chosen", "sentence"),
    [
        ({"gpus": [CARD | {"driver": ""}]}, "", "with NVIDIA's driver, models can use it"),
        ({"gpus": [CARD]}, "", "models can use the NVIDIA GPU: pip install 'puna[gpu]'"),
        ({"gpus": [CARD], "gpu_use": USE}, "cpu", "PUNA_OPS=cpu keeps models from the GPU"),
        (
            {"gpus": [CARD], "gpu_use": USE | {"problem": "it is too old"}},
            "",
            "no model uses the GPU: it is too old",
        ),
    ],
)
def test_doctor_advises_on_gpus(
    monkeypatch: pytest.MonkeyPatch, state: Any, chosen: str, sentence: str
) -> None:
    monkeypatch.setenv("PUNA_OPS", chosen)
    (advice,) = doctor.advice(GOOD | state, {})
    assert sentence in advice
    monkeypatch.delenv("PUNA_OPS")
    assert list(doctor.advice(GOOD | {"gpus": [CARD], "gpu_use": USE}, {})) == []


def test_tensor_parallelism_without_the_gpus_for_it_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_TENSOR_PARALLEL", "2")
    one, two = ({"gpu_use": USE | {"gpus": [H200] * count}} for count in (1, 2))
    (problem,) = doctor.problems(GOOD | one)
    assert problem == "PUNA_TENSOR_PARALLEL=2 needs 2 GPUs, and models can use 1: none can be loaded"
    assert list(doctor.problems(GOOD | two)) == []


@pytest.mark.slow
def test_torch_is_asked_for_gpus_in_another_process() -> None:
    found = doctor._answer(doctor._started(doctor._GPU_PROBE), "torch")
    assert set(found) == set(USE)
    assert found["gpus"] or found["problem"]


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.VARIABLES, "PUNA_API_KEYS", "keys")
    monkeypatch.setenv("PUNA_API_KEYS", "s3cr3t")
    report = doctor.examine()
    assert report["settings"]["PUNA_API_KEYS"] == "(set)"
    assert "s3cr3t" not in json.dumps(report)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Yield a port where a listener never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_process_listening_at_the_port_is_named(monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    monkeypatch.setenv("PUNA_HOST", f"127.0.0.1:{silent_port}")
    report = doctor.examine()
    assert (report["server"]["name"], report["server"]["process"]) == (None, os.getpid())
    assert (
        f"process {os.getpid()} listens at http://127.0.0.1:{silent_port} but does not answer"
        in report["problems"]
    )


@pytest.mark.parametrize(
    ("part", "state", "sentence"),
    [
        ("kernels", {"problem": "no module"}, "the C++ kernels do not work (no module)"),
        ("kernels", GOOD["kernels"] | {"used": "avx2"}, "PUNA_CPU=avx2 rules out the avx512 kernels"),
        (
            "kernels",
            GOOD["kernels"] | {"used": "portable", "all": ["portable"]},
            "lacks the vector instructions",
        ),
        ("kernels", GOOD["kernels"] | {"threads": 1}, "1 of 8 cores are used"),
        ("kernels", GOOD["kernels"] | {"memory_nodes": 2}, "2 memory nodes: try PUNA_NUMA=1"),
    ],
)
def test_doctor_advises_on_speed(part: str, state: Any, sentence: str) -> None:
    (advice,) = doctor.advice(GOOD | {part: state}, {"PUNA_CPU": "avx2"})
    assert sentence in advice


def test_advice_on_building_the_kernels_depends_on_the_compiler() -> None:
    broken = GOOD | {"kernels": {"problem": "no module"}}
    (there,) = doctor.advice(broken, {})
    assert "there is a C++ compiler" in there
    assert "PUNA_BUILD_KERNELS=1" in there
    (missing,) = doctor.advice(broken | {"compiler": None}, {})
    assert "apt install g++" in missing


def test_advice_names_a_chosen_reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_OPS", "reference")
    (advice,) = doctor.advice(GOOD, {})
    assert advice.startswith("PUNA_OPS=reference computes with plain numpy")


@pytest.mark.parametrize(
    ("part", "state", "sentence"),
    [
        ("memory", {"total": 10**9, "available": 10**8}, "only 100 MB of memory is available"),
        ("store", GOOD["store"] | {"free": 10**6}, "only 1 MB is free on the disk"),
        (
            "store",
            GOOD["store"] | {"problem": "cannot be read"},
            "the model store cannot be used: cannot be read",
        ),
        ("server", GOOD["server"] | {"name": "puna", "version": "0.0.9"}, "runs version 0.0.9"),
        ("packages", {"numpy": None}, "numpy, which Puna requires, is not installed"),
    ],
)
def test_doctor_states_each_problem(part: str, state: Any, sentence: str) -> None:
    (problem,) = doctor.problems(GOOD | {part: state})
    assert sentence in problem


def test_report_says_so_when_nothing_is_wrong() -> None:
    assert doctor.as_text(GOOD).endswith(
        "No problems found, and nothing would make Puna faster on this machine."
    )


def test_kernels_are_probed_during_the_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("_started", "_settings_problems", "_store", "_server", "_answer"):
        monkeypatch.setattr(doctor, name, _noting(order, name, getattr(doctor, name)))
    doctor.examine()
    assert order[0] == "_started"
    assert order[-1] == "_answer"


def _noting(order: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        order.append(name)
        return call(*given)

    return noted
