"""Model names: which are valid, and how they are displayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import InvalidNameError
from puna.store import ModelName


@pytest.mark.parametrize(
    ("text", "full", "display"),
    [
        ("m", "registry.ollama.ai/library/m:latest", "m:latest"),
        ("m:7b", "registry.ollama.ai/library/m:7b", "m:7b"),
        ("ns/m", "registry.ollama.ai/ns/m:latest", "ns/m:latest"),
        ("h.io/ns/m:t", "h.io/ns/m:t", "h.io/ns/m:t"),
        ("host:12345/ns/m", "host:12345/ns/m:latest", "host:12345/ns/m:latest"),
        ("hf.co/org/repo:Q4_K_M", "hf.co/org/repo:Q4_K_M", "hf.co/org/repo:Q4_K_M"),
        ("http://h.io/ns/m", "h.io/ns/m:latest", "h.io/ns/m:latest"),
        ("_a", "registry.ollama.ai/library/_a:latest", "_a:latest"),
        ("0", "registry.ollama.ai/library/0:latest", "0:latest"),
        ("a.b-c_d", "registry.ollama.ai/library/a.b-c_d:latest", "a.b-c_d:latest"),
        ("LLama3:Q8", "registry.ollama.ai/library/LLama3:Q8", "LLama3:Q8"),
        ("x:local", "registry.ollama.ai/library/x:latest", "x:latest"),
        ("x:cloud", "registry.ollama.ai/library/x:cloud", "x:cloud"),
        ("x:7b-cloud", "registry.ollama.ai/library/x:7b-cloud", "x:7b-cloud"),
        ("h" * 350 + "/n/m", "h" * 350 + "/n/m:latest", "h" * 350 + "/n/m:latest"),
        ("m" * 80, f"registry.ollama.ai/library/{'m' * 80}:latest", f"{'m' * 80}:latest"),
    ],
)
def test_missing_parts_of_a_name_are_filled_in_and_not_displayed(text: str, full: str, display: str) -> None:
    name = ModelName.parse(text)
    assert name.full == full
    assert name.display == display
    assert ModelName.parse(name.display) == name


@pytest.mark.parametrize(
    "text",
    [
        "", ".m", "-m", "m:", ":t", "a/b/c/d/e", "a/b/c/d", "ns.x/m", "m!", "a b", "m ", "mödel", "m:ü",
        "m" * 81, "ns/" + "m" * 81, "m:" + "t" * 81, "n" * 81 + "/m", "h" * 351 + "/n/m", "m@sha256:ab",
        "/m", "ns//m", "..", "../m", "m/..", "ns/m:..", "h.io/../m", "m\n", "m\0", "m:a:b",
    ],
)  # fmt: skip
def test_invalid_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidNameError, match="invalid model name"):
        ModelName.parse(text)


@pytest.mark.parametrize("text", ["x:cloud:local", "x:7b-cloud:local"])
def test_name_cannot_be_both_local_and_cloud(text: str) -> None:
    with pytest.raises(InvalidNameError, match="use either :local or :cloud, not both"):
        ModelName.parse(text)


@given(st.text(max_size=40))
def test_any_text_gives_a_safe_path_or_an_error(text: str) -> None:
    try:
        name = ModelName.parse(text)
    except InvalidNameError:
        return
    assert len(name.path.parts) == 4
    assert not any(part.startswith(".") or "/" in part for part in name.path.parts)
    assert ModelName.parse(name.full) == name
