"""The container's files: rules for what they may do, and the commands in them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from puna.cli.help import VARIABLES
from tests import commands
from tests.e2e.servers import environment, running
from tests.ports import free_port
from tests.waiting import wait_until

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


#: Starts the image's command as its user, with a root that cannot be written and no rights of root.
_START = """set -e
mount --make-rprivate /
mount --bind {root} {root}
mount -t tmpfs tmpfs {root}/tmp
mount -t tmpfs -o uid={user},mode=700 tmpfs {root}/data
mount -t proc proc {root}/proc
mount -t sysfs -o ro sysfs {root}/sys
mount --bind /dev {root}/dev
mount -o remount,ro,bind {root}
exec chroot {root} setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs --bounding-set=-all \\
    --inh-caps=-all env -i {env} {command}
"""


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout.strip()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a folder with Debian's Python, in place of the image that registries have."""
    for program in ("debootstrap", "buildah", "unshare"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("only root can make a Debian")
    if not any(FOLDER.parents[1].glob("dist/*.whl")):
        pytest.skip("there are no wheels in dist/ (make wheel)")
    packages = "python3,python3-venv,ca-certificates"
    name = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    run("debootstrap", "--variant=minbase", f"--include={packages}", name, tmp_path / "base")
    authorities = Path("etc/ssl/certs/ca-certificates.crt")  # with those of a proxy
    if ("/" / authorities).exists():
        shutil.copy("/" / authorities, tmp_path / "base" / authorities)
    return tmp_path / "base"


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_image_is_built_and_answers(base: Path, tmp_path: Path) -> None:
    """Built of the wheels in dist/ without a registry, and run with a root that cannot be written."""
    repository = FOLDER.parents[1]
    release = run(base / "usr/bin/python3", "-c", "import sys; print('%d%d' % sys.version_info[:2])")
    wheels = [*repository.glob(f"dist/*-cp{release}-*.whl"), *repository.glob("dist/*-abi3-*.whl")]
    if not wheels:
        pytest.skip(f"no wheel in dist/ is for Python {release}")
    version = wheels[0].name.split("-")[1]
    buildah = ("buildah", f"--root={tmp_path}/storage", f"--runroot={tmp_path}/run")
    made = run(*buildah, "from", "scratch")
    run(*buildah, "add", made, base, "/")
    run(*buildah, "commit", made, "localhost/base:1")
    run(
        *buildah, "bud", "--isolation=chroot", "--format=docker", "--build-arg=BASE=localhost/base:1",
        f"--build-arg=VERSION={version}", f"--file={FOLDER}/Containerfile", "--tag=puna", repository,
    )  # fmt: skip
    started = run(*buildah, "from", "localhost/puna")
    described = json.loads(run(*buildah, "inspect", "--type=image", "localhost/puna"))["Docker"]["config"]
    assert described["Healthcheck"]["Test"] == ["CMD", *health_command()]
    address = f"127.0.0.1:{free_port()}"
    settings = dict(line.split("=", 1) for line in described["Env"]) | {"PUNA_HOST": address}
    start = _START.format(
        root=run(*buildah, "mount", started),
        user=described["User"],
        env=" ".join(f"{name}={value}" for name, value in settings.items()),
        command=" ".join(described["Entrypoint"] + described["Cmd"]),
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", start],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:

        def listens() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            return "Listening on" in (tmp_path / "log").read_text()

        wait_until(listens, "the server in the image")
        question = {"role": "user", "content": "What is the capital of France?"}
        request = {"model": "demo", "messages": [question], "stream": False, "options": {"temperature": 0}}
        reply = httpx.post(f"http://{address}/api/chat", json=request, timeout=120)
        assert "Paris" in reply.json()["message"]["content"]
    finally:
        process.kill()
        process.wait(timeout=60)
        run(*buildah, "rm", "--all")
