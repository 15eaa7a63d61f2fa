"""The tables of `list` and `ps`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from puna.cli import manage

NOW = datetime(2026, 5, 24, 10, tzinfo=UTC)


def test_list_has_a_line_for_each_model() -> None:
    models = [
        {
            "name": "llama3.2:latest",
            "digest": "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72",
            "size": 2_019_393_189,
            "modified_at": "2026-05-24T11:58:00.123456789+02:00",
        },
        {
            "name": "demo:latest",
            "digest": "0a109f422b47e3a30ba2b10eca18548e944e8a23073ee3f3e947efcf3c45e59f",
            "size": 274_302_450,
            "modified_at": "2026-05-17T10:00:00Z",
        },
    ]
    assert manage.model_table(models, NOW).split("\n") == [
        "NAME               ID              SIZE      MODIFIED",
        "llama3.2:latest    a80c4f17acd5    2.0 GB    About a minute ago",
        "demo:latest        0a109f422b47    274 MB    7 days ago",
    ]


def test_cloud_model_is_listed_without_a_size() -> None:
    stub = {"name": "x:cloud", "digest": "a" * 64, "size": 384, "modified_at": "2026-05-24T10:00:00Z"}
    _, row = manage.model_table([stub | {"remote_model": "x"}], NOW).split("\n")
    assert row == "x:cloud    aaaaaaaaaaaa    -       Less than a second ago"


def test_empty_list_has_only_the_header() -> None:
    assert manage.model_table([], NOW) == "NAME    ID    SIZE    MODIFIED"


def test_ps_shows_processor_memory_and_expiry_of_a_model() -> None:
    model = {
        "name": "llama3.2:latest",
        "digest": "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72",
        "size": 3_400_000_000,
        "size_vram": 0,
        "context_length": 4096,
        "expires_at": "2026-05-24T10:04:59.5Z",
    }
    assert manage.running_table([model], NOW).split("\n") == [
        "NAME               ID              SIZE      PROCESSOR    ENGINE    "
        "CONTEXT    MEMORY    TOKENS/S    UNTIL",
        "llama3.2:latest    a80c4f17acd5    3.4 GB    100% CPU     -         "
        "4096       -         -           4 minutes from now",
    ]
    own = {"engine": "puna", "memory": {"process": 2_200_000_000}, "tokens_per_second": 31.449}
    assert manage.running_table([model | own], NOW).split("\n")[1] == (
        "llama3.2:latest    a80c4f17acd5    3.4 GB    100% CPU     puna      "
        "4096       2.2 GB    31.4        4 minutes from now"
    )


@pytest.mark.parametrize(
    ("size", "vram", "text"),
    [
        (0, 0, "Unknown"),
        (100, 0, "100% CPU"),
        (100, 100, "100% GPU"),
        (100, 52, "48%/52% CPU/GPU"),
    ],
)
def test_processor_is_the_split_between_cpu_and_gpu(size: int, vram: int, text: str) -> None:
    assert manage.processor(size, vram) == text


def test_expiry_is_stopping_or_forever_at_the_extremes() -> None:
    assert manage.until(NOW - timedelta(seconds=1), NOW) == "Stopping..."
    assert manage.until(datetime(2318, 1, 1, tzinfo=UTC), NOW) == "Forever"
