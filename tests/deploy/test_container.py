"""The container's files: rules for what they may do, and the commands in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from puna.cli.help import VARIABLES
from tests import commands
from tests.e2e.servers import environment, running

FOLDER = Path(__file__).resolve().parents[2] / "packaging" / "container"
SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)


@dataclass(frozen=True)
class Instruction:
    name: str
    value: str


def instructions() -> list[Instruction]:
    """Return the Containerfile's instructions, with their continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def values(name: str) -> list[str]:
    return [each.value for each in instructions() if each.name == name]


def has_fixed_version(image: str) -> bool:
    """Whether an image's tag names a version, or a variable that must be set."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return bool(re.match(r"v?\d|\$\{VERSION", tag))


def health_command() -> list[str]:
    """Return the health check's command."""
    (check,) = values("HEALTHCHECK")
    return list(json.loads(check[check.index("[") :]))


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text()))


def test_image_has_a_fixed_base_and_a_fixed_version() -> None:
    (base,) = [value.partition("=")[2] for value in values("ARG") if value.startswith("BASE=")]
    assert has_fixed_version(base)
    assert {value.split()[0] for value in values("FROM")} == {"${BASE}"}
    assert any('"puna==${VERSION:?}"' in command for command in values("RUN"))


def test_image_runs_as_a_user_without_rights() -> None:
    last_stage = instructions()[[each.name for each in instructions()].index("LABEL") :]
    (user,) = [each.value for each in last_stage if each.name == "USER"]
    assert int(user) > 0  # a number, since Kubernetes cannot tell whether a name is root's
    assert [each.name for each in last_stage].index("USER") > [each.name for each in last_stage].index("RUN")


def test_image_runs_its_commands_without_a_shell() -> None:
    for name in ("ENTRYPOINT", "CMD"):
        (value,) = values(name)
        assert json.loads(value)
    assert health_command()


def test_image_leaves_nothing_behind() -> None:
    assert not values("ADD")
    for command in values("RUN"):
        assert "pip install" not in command or "--no-cache-dir" in command
        assert "apt-get" not in command or "rm -rf /var/lib/apt/lists" in command
    for value in (*values("ENV"), *values("ARG")):
        assert not SECRET.search(value)


def test_settings_of_the_containers_exist() -> None:
    names = set(re.findall(r"\b(PUNA_\w+)=", " ".join(values("ENV"))))
    names |= {name for name in compose()["services"]["puna"]["environment"] if name.startswith("PUNA_")}
    assert names
    assert names <= set(VARIABLES)


def test_services_have_fixed_versions_and_no_secrets() -> None:
    services = compose()["services"]
    assert set(services) == {"puna", "webui", "caddy"}
    for name, service in services.items():
        assert has_fixed_version(service["image"]), name
        assert not service.get("privileged")
        assert "network_mode" not in service
        for setting, value in service["environment"].items():
            assert not SECRET.search(setting) or value.startswith("${"), f"{name}: {setting}"
    assert [name for name, service in services.items() if "ports" in service] == ["caddy"]


def test_server_in_a_container_can_do_nothing_else() -> None:
    puna = compose()["services"]["puna"]
    assert puna["read_only"] is True
    assert puna["cap_drop"] == ["ALL"]
    assert puna["security_opt"] == ["no-new-privileges:true"]
    assert [volume.partition(":")[2] for volume in puna["volumes"]] == values("VOLUME")


def test_server_believes_the_proxy_only() -> None:
    services, networks = compose()["services"], compose()["networks"]
    address = services["caddy"]["networks"]["inside"]["ipv4_address"]
    assert services["puna"]["environment"]["FORWARDED_ALLOW_IPS"] == address
    (subnet,) = networks["inside"]["ipam"]["config"]
    assert ip_address(address) in ip_network(subnet["subnet"])


@pytest.mark.e2e
@pytest.mark.slow
def test_health_check_needs_no_key_and_notices_a_server_that_is_gone(tmp_path: Path) -> None:
    program, option, code = health_command()
    assert (program, option) == ("/opt/puna/bin/python", "-c")
    with running(tmp_path) as server:
        commands.run("key", "new", "--name", "me", env=environment(server.models))
        code = code.replace("http://127.0.0.1:11434", server.url)
        assert server.http.get("/api/tags").status_code == 401
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert gone.returncode != 0
