"""The units for systemd: valid, hardened, and enough for all that the server does."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.deploy.booted import ROOT, booted
from tests.ports import free_port

UNITS = ROOT / "share" / "systemd"

#: Exposure by `systemd-analyze security`, from 0 to 10; users' services cannot have all restrictions.
MOST_EXPOSED = {"system": 1.5, "user": 6.5}

needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed (apt install systemd)"
)


def analyze(*words: str, runtime: Path | None = None) -> str:
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "HOME": "/nonexistent"}
    if runtime is not None:
        env["XDG_RUNTIME_DIR"] = str(runtime)
    done = subprocess.run(
        ["systemd-analyze", *words], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
@pytest.mark.parametrize("kind", MOST_EXPOSED)
def test_unit_is_hardened(kind: str) -> None:
    said = analyze("security", "--offline=true", "--no-pager", str(UNITS / kind / "puna.service"))
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert float(exposure) <= MOST_EXPOSED[kind]


@needs_systemd
@pytest.mark.parametrize("kind", MOST_EXPOSED)
def test_unit_is_valid(kind: str, tmp_path: Path) -> None:
    # The program is not installed where the unit expects it.
    unit = tmp_path / "puna.service"
    text, changed = re.subn(
        "^ExecStart=.*/puna ",
        f"ExecStart={tmp_path}/puna ",
        (UNITS / kind / "puna.service").read_text(),
        flags=re.M,
    )
    assert changed == 1
    unit.write_text(text)
    (tmp_path / "puna").write_text("#!/bin/sh\n")
    (tmp_path / "puna").chmod(0o755)
    said = analyze("verify", f"--{kind}", "--man=no", "--recursive-errors=no", str(unit), runtime=tmp_path)
    assert said == ""


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemd is not installed (apt install systemd)")
def test_service_does_all_that_the_server_does(tmp_path: Path) -> None:
    """The hardened unit in a real systemd: models load, and the confined processes beside them work."""
    url = f"http://127.0.0.1:{free_port()}"
    with booted(tmp_path, {"PUNA_HOST": url, "PUNA_NUM_THREADS": "1"}) as machine:
        machine.run("systemctl", "start", "puna")  # returns when the server says that it is ready
        with httpx.Client(base_url=url, timeout=120) as client:
            assert client.get("/api/version").status_code == 200

            def ask(**request: object) -> dict[str, object]:
                options = {"temperature": 0, "num_predict": 24}
                reply = client.post("/api/chat", json={"stream": False, "options": options, **request})
                assert reply.status_code == 200, reply.text
                return dict(reply.json())

            question = {"role": "user", "content": "What is the capital of France?"}
            schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
            asked = ask(model="demo", messages=[question], format=schema)  # renderer and grammar processes
            assert str(asked["message"]).count("name")
            picture = base64.b64encode((ROOT / "docs/pictures/shapes.png").read_bytes()).decode()
            seen = {"role": "user", "content": "What is in this picture?", "images": [picture]}
            ask(model="demo-vision", messages=[seen])  # the process that reads images
            create = {"model": "mine", "from": "demo", "system": "Be brief.", "stream": False}
            assert (
                client.post("/api/create", json=create).json()["status"] == "success"
            )  # writes to the store
        assert "mine" in machine.run("ls", "-R", "/var/lib/puna/.ollama/models/manifests")
        as_puna = ("setpriv", "--reuid=puna", "--clear-groups", "env", "HOME=/var/lib/puna")
        made = machine.run(*as_puna, "/opt/puna/bin/puna", "key", "new", "--name", "me")
        assert httpx.get(f"{url}/api/tags").status_code == 401
        assert "puna-" in made
        machine.run("systemctl", "stop", "puna")
        said = machine.run("systemctl", "show", "puna", "--property=Result,ExecMainStatus")
        assert "Result=success" in said
        assert "ExecMainStatus=0" in said
