"""The manifest for KubeRay, held against Ray, and against what it starts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from puna.cluster.credentials import init, protection
from puna.cluster.settings import DEFAULT_PORT
from puna.runner.tls import tls_contexts
from tests.cluster.conftest import HAS_RAY

pytestmark = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install '.[test]'")

MANIFEST: Final = Path(__file__).resolve().parents[2] / "packaging" / "kubernetes" / "puna.yaml"
POD: Final = "192.0.2.7"


def manifest() -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Return the specifications of the head's pod and the workers'."""
    spec = manifest()["spec"]
    [workers] = spec["workerGroupSpecs"]
    groups = {"head": spec["headGroupSpec"], "worker": workers}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def script(container: dict[str, Any]) -> str:
    [text] = container["args"]
    return str(text)


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def test_ray_reads_the_manifest() -> None:
    import ray
    from ray.autoscaler._private.kuberay import autoscaling_config

    config = autoscaling_config._derive_autoscaling_config_from_ray_cr(manifest())
    nodes = config["available_node_types"]
    assert {name: each["resources"]["CPU"] for name, each in nodes.items()} == {"headgroup": 8, "workers": 8}
    assert (config["cluster_name"], config["max_workers"]) == ("puna", 2)
    assert manifest()["spec"]["rayVersion"] == ray.__version__


def test_parameters_are_those_of_ray_start() -> None:
    from ray.scripts.scripts import start

    known = {name for option in start.params for name in option.opts}
    spec = manifest()["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert {f"--{name}" for name in group["rayStartParams"]} <= known


def test_volumes_and_ports_belong_together() -> None:
    for pod in pods().values():
        volumes = {volume["name"] for volume in pod["volumes"]}
        containers = [*pod["initContainers"], *pod["containers"]]
        assert volumes == {mount["name"] for one in containers for mount in one["volumeMounts"]}
        folders = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        used = {
            str(Path(value).parent) for value in environment(pod["containers"][0]).values() if "." in value
        }
        assert used <= folders
        assert environment(pod["containers"][0])["PUNA_MODELS"] in folders
    [head] = pods()["head"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert ports["gcs-server"] == DEFAULT_PORT
    assert f"--host 0.0.0.0:{ports['puna']}" in script(head)


def test_head_serves_on_the_cluster_that_kuberay_starts() -> None:
    import typer.main

    from puna.cli.app import app

    text = script(pods()["head"]["containers"][0])
    for each in pods().values():
        assert "$KUBERAY_GEN_RAY_START_CMD" in script(each["containers"][0])
        subprocess.run(["bash", "-n"], input=script(each["containers"][0]), text=True, check=True)
    words = shlex.split(text.rpartition("exec puna ")[2])
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    given = commands[words[0]].make_context("serve", words[1:]).params
    assert (given["cluster"], given["ray"]) == (True, "auto")


@pytest.mark.slow
def test_pods_make_certificates_of_one_authority(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    init(secret, [])
    for name, pod in pods().items():
        [maker] = pod["initContainers"]
        folder = tmp_path / name
        folder.mkdir()

        def here(text: str, folder: Path = folder) -> str:
            return text.replace("/secret", str(secret)).replace("/cluster", str(folder))

        env = {name: here(value) for name, value in environment(maker).items()} | {"POD_IP": POD}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            [*maker["command"], here(script(maker))],
            env=os.environ | env | {"PATH": path},
            check=True,
        )
        assert {each.name for each in folder.iterdir()} == {"token", "ca.pem", "cert.pem", "key.pem"}
        assert (folder / "token").read_bytes() == (secret / "token").read_bytes()
        given = {name: here(value) for name, value in environment(pod["containers"][0]).items()}
        found = protection(POD, tmp_path / "nothing", given)  # refuses what others could reach
        assert tls_contexts(found) is not None
        shown = subprocess.run(
            ["openssl", "x509", "-in", folder / "cert.pem", "-noout", "-ext", "subjectAltName"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert POD in shown
        assert "puna-head-svc.default.svc.cluster.local" in shown
