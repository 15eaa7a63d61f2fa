"""Memory that a process's control groups leave to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna import system
from puna.system.memory import group_limit, group_memory

pytestmark = pytest.mark.skipif(not system.has_linux(), reason="only Linux has control groups")


def write_group(folder: Path, names: tuple[str, str], limit: str, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")


SECOND = ("memory.max", "memory.current")
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("group", "groups", "left"),
    [
        pytest.param("0::/", {}, None, id="none"),
        pytest.param("0::/", {"": (SECOND, "1000", 300)}, 700, id="of a container"),
        pytest.param(
            "0::/system.slice/puna.service",
            {"system.slice": (SECOND, "max", 900), "system.slice/puna.service": (SECOND, "1000", 100)},
            900,
            id="of a service",
        ),
        pytest.param(
            "0::/system.slice/puna.service",
            {"system.slice": (SECOND, "500", 450), "system.slice/puna.service": (SECOND, "1000", 100)},
            50,
            id="of the service's slice",
        ),
        pytest.param("0::/elsewhere/a1b2", {"": (SECOND, "100", 300)}, 0, id="more used than allowed"),
        pytest.param(
            "3:cpuset:/\n4:cpu,memory:/docker/a1b2\n0::/",
            {"memory/docker/a1b2": (FIRST, "1000", 250)},
            750,
            id="of the first version",
        ),
    ],
)
def test_group_leaves_what_is_least(
    group: str, groups: dict[str, tuple[tuple[str, str], str, int]], left: int | None, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for folder, (names, limit, used) in groups.items():
        write_group(tmp_path / "sys/fs/cgroup" / folder, names, limit, used)
    assert group_memory(tmp_path) == left
    limits = [int(limit) for _, limit, _ in groups.values() if limit != "max"]
    assert group_limit(tmp_path) == min(limits, default=None)


def test_pages_of_files_that_give_way_are_left(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    write_group(tmp_path / "sys/fs/cgroup", SECOND, "1000", 900)
    (tmp_path / "sys/fs/cgroup/memory.stat").write_text("anon 200\nfile 700\ninactive_file 600\n")
    assert group_memory(tmp_path) == 700
