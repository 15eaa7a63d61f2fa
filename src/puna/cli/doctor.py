"""`puna doctor`: the installation and the store, their problems, and ways to make Puna faster."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from puna import __version__, config
from puna.cli import progress
from puna.cli.client import Client
from puna.cli.help import VARIABLES
from puna.cli.progress import StatusLines
from puna.cli.server_process import listener
from puna.cli.version import installed_version, requirements
from puna.devices import Devices, devices
from puna.errors import PunaError
from puna.hosts import Host, host_from_env
from puna.machine import available_memory
from puna.registry.pull import heal
from puna.registry.report import TransferProgress
from puna.store import Store
from puna.store.verify import Damage, Findings, verify
from puna.system import text_of


def doctor_store(*, as_json: bool, heals: bool, insecure: bool) -> bool:
    """Print what is wrong with the store, repair it if `heals`, and return whether it is sound now."""
    store = Store()
    found = _verified(store, quiet=as_json)
    healed: list[str] = []
    left: list[tuple[Damage, str]] = [(damage, "") for damage in found.damages]
    if heals:
        left = []
        with StatusLines(quiet=as_json) as lines:

            def report(step: TransferProgress) -> None:
                lines.show(step.status, step.completed, step.total)

            for damage in found.damages:
                reason = heal(store, damage, report, insecure=insecure)
                if reason:
                    left.append((damage, reason))
                else:
                    healed.append(damage.layer.digest)
    removed = store.prune() if heals else 0
    if as_json:
        print(json.dumps(_report(store, found, healed, left, removed), indent=2))
    else:
        print(_text(store, found, healed, left, removed))
    return not left and not found.manifests


def _verified(store: Store, *, quiet: bool) -> Findings:
    if quiet:
        return verify(store)
    with StatusLines() as lines:
        return verify(store, lambda done, total: lines.show("verifying", done, total))


def _report(
    store: Store, found: Findings, healed: list[str], left: list[tuple[Damage, str]], removed: int
) -> dict[str, Any]:
    return {
        "path": str(store.root),
        "models": found.models,
        "blobs": found.blobs,
        "size": found.size,
        "unused": [path.name for path in found.unused],
        "removed": removed,
        "healed": healed,
        "damaged": [
            {
                "digest": damage.layer.digest,
                "problem": damage.problem,
                "models": [name.display for name in damage.models],
                "reason": reason or None,
            }
            for damage, reason in left
        ],
        "manifests": found.manifests,
    }


def _text(
    store: Store, found: Findings, healed: list[str], left: list[tuple[Damage, str]], removed: int
) -> str:
    lines = [
        f"{store.root}: {found.models} model(s), {found.blobs} blob(s), {progress.size(found.size)} read",
    ]
    lines += [f"- healed: {digest}" for digest in healed]
    for damage, reason in left:
        models = ", ".join(name.display for name in damage.models) or "no model"
        advice = reason or "'puna doctor --store --heal' downloads it again if its registry still has it"
        lines.append(f"- {damage.layer.digest} of {models}: {damage.problem}; {advice}")
    lines += [f"- {problem}" for problem in found.manifests]
    if removed:
        lines.append(f"Removed {removed} unused file(s).")
    elif found.unused:
        lines.append(f"{len(found.unused)} unused or unfinished file(s); starting a server removes old ones.")
    if not left and not found.manifests:
        lines.append("Nothing is damaged.")
    return "\n".join(lines)


#: With less memory or disk space than this, models cannot be loaded or stored.
_LITTLE_BYTES = 10**9

_PROBE_TIMEOUT_S = 60.0
#: Runs in a process of its own: importing an extension built for another machine may crash.
_PROBE = """
import json
from puna import _native
from puna.ops import backend_named
backend = backend_named("cpu")
print(json.dumps({
    "used": backend.kernels, "all": _native.cpu_levels(), "threads": backend.threads(),
    "memory_nodes": len(_native.memory_nodes()),
}))
"""

#: In another process too: torch takes seconds to import, and loads the GPU's driver.
_GPU_PROBE = """
import json
from puna.ops.gpu import describe_gpus
print(json.dumps(describe_gpus()))
"""

Report = dict[str, Any]


def doctor(*, as_json: bool) -> None:
    """Print the report; see `examine`."""
    report = examine()
    print(json.dumps(report, indent=2) if as_json else as_text(report))


def examine() -> Report:
    """Report on this installation without starting a server. Sizes are in bytes; None means absent.

    `problems` are sentences about things that do not work or are ignored, `advice` about ways to be faster.
    """
    found = devices()
    probe, on_gpus = _started(_PROBE), _gpu_probe(found)  # take longest, so they run beside the rest
    ignored = _settings_problems()
    report: Report = {
        "puna": __version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "system": platform.platform(),
        "processor": asdict(found.processor),
        "gpus": [asdict(gpu) for gpu in found.gpus],
        "gpu_use": {},
        "kernels": {},
        "compiler": _compiler(),
        "memory": {"total": psutil.virtual_memory().total, "available": available_memory()},
        "torch": installed_version("torch") or None,
        "store": _store(config.models_dir()),
        "server": _server(host_from_env()),
        "packages": {name: installed_version(name) or None for name in requirements()},
        "settings": {name: _shown(name) for name in sorted(os.environ) if _is_setting(name)},
    }
    report["kernels"] = _answer(probe, "the kernels")
    report["gpu_use"] = _answer(on_gpus, "torch") if on_gpus is not None else {}
    report["problems"] = [*ignored, *problems(report)]
    report["advice"] = list(advice(report, os.environ))
    return report


def _is_setting(name: str) -> bool:
    return name in VARIABLES or name.replace("OLLAMA_", "PUNA_", 1) in VARIABLES


def _shown(name: str) -> str:
    return "(set)" if "_KEY" in name or "TOKEN" in name else os.environ[name]  # reports get shared


def _settings_problems() -> list[str]:
    """Return the errors and warnings that the settings cause."""
    from puna.server.settings import Settings

    collector = _LogCollector()
    log = logging.getLogger("puna")
    log.addHandler(collector)
    try:
        host_from_env()
        Settings.from_env()
    except PunaError as error:
        collector.messages.append(str(error))
    finally:
        log.removeHandler(collector)
    return [*config.unknown_variables(VARIABLES), *collector.messages]


class _LogCollector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _started(code: str) -> subprocess.Popen[str]:
    """Start a process that prints JSON; `_answer` waits for it."""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _gpu_probe(found: Devices) -> subprocess.Popen[str] | None:
    """Start the process that asks torch for GPUs, if there is one and torch."""
    there = found.gpus or Path("/dev/dxg").exists()  # Linux in Windows lists no GPUs
    return _started(_GPU_PROBE) if there and installed_version("torch") else None


def _answer(probe: subprocess.Popen[str], subject: str) -> Report:
    """Return the JSON of a process, or the `problem`."""
    with probe:
        try:
            output, errors = probe.communicate(timeout=_PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            probe.kill()
            return {"problem": f"{subject} did not answer within {_PROBE_TIMEOUT_S:.0f} seconds"}
    if probe.returncode == 0:
        return dict(json.loads(output))
    lines = errors.strip().splitlines()
    return {"problem": lines[-1] if lines else f"importing them ended with status {probe.returncode}"}


def _compiler() -> str | None:
    """Return the first line of a C++ compiler's `--version`, or None if there is no compiler."""
    for command in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if path := shutil.which(command):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            return (done.stdout.splitlines() or [path])[0]
    return None


def _store(path: Path) -> Report:
    from puna.store import Store

    models: int | None = None
    problem = None
    try:
        models = sum(not model.bundled for model in Store(path).list())
    except (PunaError, OSError) as error:
        problem = str(error)
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if problem is None and not os.access(existing, os.W_OK):
        problem = f"{existing} is not writable"
    return {
        "path": str(path),
        "models": models,
        "size": sum(_sizes(path / "blobs")),
        "free": shutil.disk_usage(existing).free,
        "problem": problem,
    }


def _sizes(folder: Path) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return


def _server(host: Host) -> Report:
    """Report which server answers: `puna`, `ollama` (or one with its API), none, or a `problem`."""
    report: Report = {"url": host.client_url, "name": None, "version": None, "process": None}
    if host.is_local and (process := listener(host)) is not None:
        report["process"] = process.pid
    try:
        with Client(host) as client:
            if not client.is_up():
                if report["process"]:
                    report["problem"] = (
                        f"process {report['process']} listens at {host.client_url} but does not answer"
                    )
            else:
                reply = client.get("/api/version")
                report["name"] = "puna" if "puna" in reply else "ollama"
                report["version"] = reply.get("puna") or reply.get("version")
    except PunaError as error:
        report["problem"] = str(error)
    return report


def problems(report: Report) -> Iterator[str]:
    memory, store, server = report["memory"], report["store"], report["server"]
    if memory["available"] < _LITTLE_BYTES:
        yield f"only {progress.size(memory['available'])} of memory is available"
    if store["problem"]:
        yield f"the model store cannot be used: {store['problem']}"
    if store["free"] < _LITTLE_BYTES:
        yield f"only {progress.size(store['free'])} is free on the disk of the model store"
    if problem := server.get("problem"):
        yield problem
    if server["name"] == "puna" and server["version"] != __version__:
        yield (
            f"the server at {server['url']} runs version {server['version']}; "
            "'puna serve --stop' stops it, and the next command starts this version"
        )
    wanted = config.env_int("TENSOR_PARALLEL", 1, least=1)
    usable = sum(not gpu["problem"] for gpu in report["gpu_use"].get("gpus", ()))
    if wanted > max(usable, 1) and config.env("GPU_DEVICE") != "cpu":
        need = f"PUNA_TENSOR_PARALLEL={wanted} needs {wanted} GPUs"
        yield f"{need}, and models can use {usable}: none can be loaded"
    for name, version in report["packages"].items():
        if version is None:
            yield f"{name}, which Puna requires, is not installed"


def advice(report: Report, environ: Mapping[str, str]) -> Iterator[str]:
    kernels, processor = report["kernels"], report["processor"]
    chosen = config.env("OPS")
    if problem := kernels.get("problem"):
        yield (
            f"the C++ kernels do not work ({problem}), and plain numpy is many times slower: "
            f"{_remedy(report)}"
        )
    elif chosen == "reference":
        yield "PUNA_OPS=reference computes with plain numpy; the C++ kernels are many times faster"
    else:
        yield from _tuning(kernels, processor, environ)
    yield from _gpu_advice(report)


def _gpu_advice(report: Report) -> Iterator[str]:
    """Yield how a GPU could be used that is not."""
    drivers = [gpu["driver"] for gpu in report["gpus"] if gpu["name"].startswith("NVIDIA")]
    use, chosen = report["gpu_use"], config.env("OPS")
    if drivers and not any(drivers):
        yield "there is an NVIDIA GPU without a driver: with NVIDIA's driver, models can use it"
    elif chosen in ("cpu", "reference") and (drivers or use.get("gpus")):
        yield f"PUNA_OPS={chosen} keeps models from the GPU"
    elif drivers and not use:
        yield "models can use the NVIDIA GPU: pip install 'puna[gpu]'"
    elif problem := use.get("problem"):
        yield f"no model uses the GPU: {problem}"


def _remedy(report: Report) -> str:
    """Return instructions for getting the kernels, which depend on whether there is a compiler."""
    install = f"{sys.executable} -m pip install --force-reinstall --no-deps --no-cache-dir {_origin()}"
    if report["compiler"] is None:
        return (
            "install a C++ compiler (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++), "
            f"then run: {install}"
        )
    return f"there is a C++ compiler, so this shows why it fails: PUNA_BUILD_KERNELS=1 {install}"


def _origin() -> str:
    """Return pip's argument for reinstalling Puna as it was: its name, or the folder of its sources."""
    try:
        origin = json.loads(metadata.distribution("puna").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return "puna"
    folder = str(origin.get("url", "")).removeprefix("file://")
    if not folder.startswith("/"):
        return "puna"
    return f"--editable {folder}" if origin.get("dir_info", {}).get("editable") else folder


def _tuning(kernels: Report, processor: Report, environ: Mapping[str, str]) -> Iterator[str]:
    best = kernels["all"][-1]
    if kernels["used"] != best:
        yield f"PUNA_CPU={environ.get('PUNA_CPU')} rules out the {best} kernels, which are faster"
    elif best == "portable":
        yield "this processor lacks the vector instructions that the fast kernels need (AVX2 or NEON)"
    cores = min(processor["cores"] or processor["usable"], processor["usable"])
    if kernels["threads"] < cores:
        used = kernels["threads"]
        yield f"only {used} of {cores} cores are used: see PUNA_NUM_THREADS and the container's limits"
    if kernels["memory_nodes"] > 1 and not config.env_bool("NUMA"):
        yield f"this machine has {kernels['memory_nodes']} memory nodes: try PUNA_NUMA=1 with large models"
    if not config.env_bool("REPLAY", True):
        yield "PUNA_REPLAY=0 slows down small models"


def as_text(report: Report) -> str:
    """Format the report as text: facts, then problems, then advice."""
    kernels, processor, store = report["kernels"], report["processor"], report["store"]
    found = kernels.get("problem")
    used = (
        f"{kernels.get('used')} (of {', '.join(kernels.get('all', ()))}), {kernels.get('threads')} thread(s)"
    )
    models = "unreadable" if store["models"] is None else f"{store['models']} model(s)"
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    facts = [
        ("puna", report["puna"]),
        ("python", f"{report['python']['version']} ({report['python']['path']})"),
        ("system", report["system"]),
        ("processor", f"{processor['name']}, {processor['cores']} core(s), {processor['usable']} usable"),
        ("gpus", _gpus_text(report["gpus"], report["gpu_use"])),
        ("kernels", f"none: {found}" if found else used),
        ("compiler", report["compiler"] or "none"),
        ("memory", f"{_size(report['memory']['available'])} available of {_size(report['memory']['total'])}"),
        ("torch", report["torch"] or "not installed (GPUs and tests need it)"),
        ("store", f"{store['path']}: {models}, {_size(store['size'])}; {_size(store['free'])} free"),
        ("server", _server_text(report["server"])),
        ("settings", ", ".join(f"{name}={value}" for name, value in report["settings"].items()) or "none"),
        ("packages", packages),
    ]
    lines = [f"{name:<10} {value}" for name, value in facts]
    for title, sentences in (("Problems", report["problems"]), ("Could be faster", report["advice"])):
        if sentences:
            lines += ["", f"{title}:", *(f"- {sentence}" for sentence in sentences)]
    if not report["problems"] and not report["advice"]:
        lines += ["", "No problems found, and nothing would make Puna faster on this machine."]
    return "\n".join(lines)


def _gpus_text(gpus: list[Report], use: Report) -> str:
    """Return the machine's GPUs, and those that torch finds with what models make of them."""
    names = ", ".join(f"{gpu['name']} ({_driver_text(gpu['driver'])})" for gpu in gpus) or "none"
    found = [
        f"{gpu['name']}, {_size(gpu['memory'])}, {gpu['architecture']}, {use['runtime']}: "
        + (f"not used: {gpu['problem']}" if gpu["problem"] else "used")
        for gpu in use.get("gpus", ())
    ]
    if not found and (gpus or use):
        found = [f"models use the processor: {use.get('problem') or 'the extra gpu is not installed'}"]
    return "; ".join([names, *found])


def _driver_text(driver: str) -> str:
    if not driver:
        return "no driver"
    return f"{driver} {text_of(Path('/sys/module') / driver / 'version').strip()}".strip()


def _server_text(server: Report) -> str:
    process = f", process {server['process']}" if server["process"] else ""
    if server["name"]:
        return f"{server['name']} {server['version']} at {server['url']}{process}"
    if "problem" in server:
        return f"not Puna or Ollama at {server['url']}{process}"
    return f"none at {server['url']}"


def _size(size_bytes: int) -> str:
    return progress.size(size_bytes)
