"""Settings of a cluster."""

from __future__ import annotations

import pytest

from puna.cluster.settings import ClusterSettings, memory_limit
from puna.errors import PunaError


def test_this_machine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_HOME", "/nowhere")
    settings = ClusterSettings.from_env()
    assert (settings.host, settings.address, settings.replicas) == ("127.0.0.1", "127.0.0.1:6379", (1, 0))
    assert str(settings.folder) == "/nowhere/cluster"


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_CLUSTER_HOST", "192.0.2.1:7000")
    monkeypatch.setenv("PUNA_CLUSTER_JOIN", "192.0.2.9")
    settings = ClusterSettings.from_env()
    assert (settings.host, settings.port, settings.join) == ("192.0.2.1", 7000, "192.0.2.9:6379")
    settings = ClusterSettings.from_env(host="192.0.2.2", join="192.0.2.8:1")
    assert (settings.host, settings.address) == ("192.0.2.2", "192.0.2.8:1")


@pytest.mark.parametrize("host", ["box:", "box:x", "box:0", "box:65536"])
def test_a_wrong_address_is_refused(host: str) -> None:
    with pytest.raises(PunaError, match="HOST or HOST:PORT"):
        ClusterSettings.from_env(host=host)


def test_a_node_has_one_head() -> None:
    with pytest.raises(PunaError, match="not both"):
        ClusterSettings.from_env(join="192.0.2.1", ray="auto")


def test_memory_of_a_node_is_limited_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert memory_limit() > 1 << 50
    monkeypatch.setenv("PUNA_CLUSTER_MEMORY_MB", "512")
    assert memory_limit() == 512 << 20
    monkeypatch.setenv("PUNA_CLUSTER_MEMORY_MB", "16G")
    ClusterSettings.from_env()
    assert "PUNA_CLUSTER_MEMORY_MB=16G: must be an integer; using all memory" in caplog.text


def test_the_environment_sets_the_number_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_REPLICAS", "2,5")
    assert ClusterSettings.from_env().replicas == (2, 5)
    monkeypatch.setenv("PUNA_REPLICAS", "5,2")
    with pytest.raises(PunaError, match=r"PUNA_REPLICAS: .* minimum above its maximum: '5,2'"):
        ClusterSettings.from_env()
