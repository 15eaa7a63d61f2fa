"""The choice of a model's template, and the model's abilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puna.chat.templates.author import Author
from puna.chat.templates.choose import abilities, chat_format, chat_template, check_template
from puna.chat.templates.defaults import rendered_by
from puna.chat.templates.messages import ChatFormat
from puna.chat.templates.model_facts import ModelFacts, facts_at, read_facts
from puna.errors import RequestError, TemplateError
from puna.gguf import open_gguf
from puna.store import ModelSpec, Store, StoredModel
from tests.store.store_files import write_gguf

JINJA = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
USER = [{"role": "user", "content": "hi"}]

Create = Callable[..., StoredModel]


@pytest.fixture
def create(tmp_path: Path) -> Create:
    store = Store(tmp_path / "models")

    def make(spec: dict[str, Any] | None = None, architecture: str = "llama", **metadata: Any) -> StoredModel:
        path = tmp_path / "model.gguf"
        write_gguf(path, architecture, **metadata)
        return store.create("m", ModelSpec(files={"m.gguf": store.import_file(path)}, **(spec or {})))

    return make


def form_of(model: StoredModel, template: str = "") -> ChatFormat:
    assert model.model_path is not None
    return chat_format(facts_at(model.model_path) or ModelFacts(), template or model.template or "")


def test_the_files_own_template_is_used_without_a_layer(create: Create, tmp_path: Path) -> None:
    model = create(tokenizer__chat_template=JINJA)
    assert form_of(model).render(USER) == "user:hi;"
    assert form_of(model).template == JINJA
    with open_gguf(tmp_path / "model.gguf") as file:
        assert chat_format(read_facts(file)).render(USER) == "user:hi;"


def test_a_stored_template_overrides_the_files_and_a_given_one_both(create: Create) -> None:
    model = create({"template": "[{{ .Prompt }}]"}, tokenizer__chat_template=JINJA)
    assert form_of(model).render(USER) == "[hi]"
    assert form_of(model, "<{{ .Prompt }}>").render(USER) == "<hi>"
    assert form_of(model, "{% if true %}{{ messages[0].content }}{% endif %}").render(USER) == "hi"


def test_a_renderer_overrides_a_layer_and_the_files_template_both(create: Create) -> None:
    named = {"renderer": "qwen3-coder", "parser": "qwen3-coder", "template": "{{ .Prompt }}"}
    model = create(named)
    author = Author.of(model)
    assert author.template == rendered_by("qwen3-coder")
    assert author.capabilities == ("completion", "tools")
    assert form_of(model, author.template).render(USER).startswith("<|im_start|>user\nhi<|im_end|>")
    assert Author.of(model, "[{{ .Prompt }}]").template == "[{{ .Prompt }}]"
    assert Author.of(create(named, tokenizer__chat_template=JINJA)).template == ""
    with pytest.raises(RequestError, match="unknown renderer 'x9'"):
        _ = Author.of(create({"renderer": "x9"}))
    assert Author.of(create({"renderer": "x9"}, tokenizer__chat_template=JINJA)).template == ""


def test_a_model_without_a_template_gets_its_architectures_default(create: Create) -> None:
    tokens = ["a", "<|im_end|>", "<|im_middle|>"]
    model = create(None, "deepseek2", tokenizer__ggml__tokens=tokens, tokenizer__ggml__eos_token_id=1)
    assert Author.of(model).answer_family() == "kimi"
    model = create(None, "qwen3", tokenizer__ggml__tokens=tokens, tokenizer__ggml__eot_token_id=1)
    assert Author.of(model).capabilities == ("completion", "tools", "thinking")


def test_an_unknown_model_without_a_template_gets_the_plain_prompt(create: Create) -> None:
    model = create()
    form = form_of(model)
    assert form.template == "{{ .Prompt }}"
    assert form.render(USER) == "hi"
    assert Author.of(model).capabilities == ("completion",)
    assert form.traits.stop == ()


@pytest.mark.parametrize(
    ("template", "architecture", "metadata", "can"),
    [
        ("{{ .Prompt }}", "llama", {}, ("completion",)),
        ("{{ .Tools }}{{ .Prompt }}{{ .Suffix }}", "llama", {}, ("completion", "tools", "insert")),
        (
            "{{ range .Messages }}{{ if .Thinking }}<t>{{ .Thinking }}</t>{{ end }}{{ end }}",
            "llama",
            {},
            ("completion", "thinking"),
        ),
        ("{{ .Prompt }}", "gptoss", {}, ("completion", "thinking")),
        ("{{ .Prompt }}", "bert", {"ARCH__pooling_type": 0}, ("embedding",)),
        ("{{ .Prompt }}", "bert", {"ARCH__pooling_type": 4}, ("rerank",)),
        (
            "{{ .Prompt }}",
            "gemma3",
            # Without tensors of a vision tower there is no vision, whatever the metadata says, and no audio
            # tower is read from the model's own file.
            {"ARCH__block_count": 1, "ARCH__vision__block_count": 2, "ARCH__audio__block_count": 2},
            ("completion",),
        ),
        (None, "llama", {"tokenizer__chat_template": JINJA}, ("completion",)),
        (None, "llama", {"tokenizer__chat_template": "{% if tools %}{% endif %}"}, ("completion", "tools")),
        (
            None,
            "qwen3",
            {"tokenizer__chat_template": "{% if tools %}<think>{{ x }}</think>{% endif %}"},
            ("completion", "tools", "thinking"),
        ),
    ],
)
def test_capabilities_come_from_template_and_file(
    create: Create,
    template: str | None,
    architecture: str,
    metadata: dict[str, Any],
    can: tuple[str, ...],
) -> None:
    model = create({"template": template}, architecture, **metadata)
    assert Author.of(model).capabilities == can


def test_claimed_capabilities_and_vision_keep_their_order() -> None:
    facts = ModelFacts(architecture="llama")
    template = "{{ .Tools }}{{ .Prompt }}{{ .Suffix }}"
    towers = ModelFacts(projector="pixtral", hearing="voxtral")
    assert abilities(facts, chat_template(facts, template), extra=["image"], towers=towers).capabilities == (
        "completion", "vision", "audio", "image", "tools", "insert",
    )  # fmt: skip
    assert "audio" not in abilities(facts, towers=ModelFacts(hearing="qwen3a")).capabilities
    assert abilities(facts, extra=["thinking"]).capabilities == ("completion", "thinking")


@pytest.mark.parametrize(
    ("template", "pooling", "framed"),
    [
        ("search_query: {{ .Prompt }}", 1, "search_query: sky"),
        ("<{{- .Prompt }} >", 1, "<sky >"),
        ("{{ .Prompt }}", 1, "sky"),
        ("title: none", 1, "sky"),
        ("{{ .Prompt }}, {{ .Prompt }}", 1, "sky"),
        ("{{ if .System }}{{ .System }}{{ end }}query: {{ .Prompt }}", 1, "sky"),
        ("query: {{ .Prompt | printf }}", 1, "sky"),
        ("<user>{{ .Prompt }}<assistant>", None, "sky"),
        ("query: {{ .Prompt }}", 4, "sky"),
        (None, 1, "sky"),
    ],
)
def test_a_template_of_only_the_prompt_frames_embedded_texts(
    create: Create, template: str | None, pooling: int | None, framed: str
) -> None:
    metadata = {} if pooling is None else {"ARCH__pooling_type": pooling}
    author = Author.of(create({"template": template}, "qwen3", **metadata))
    assert author.framed(["sky", [1, 2]]) == [framed, [1, 2]]


def test_a_model_without_its_file_has_no_capabilities(create: Create) -> None:
    model = create({"template": "{{ .Prompt }}{{ .Tools }}"})
    assert model.model_path is not None
    model.model_path.unlink()
    assert Author.of(model).capabilities == ()


@pytest.mark.parametrize(
    ("architecture", "metadata", "text"),
    [
        ("llama", {"tokenizer__ggml__model": "llama"}, "|B|E"),  # SentencePiece: BOS is usual
        ("llama", {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__bos_token_id": 1}, "|B|"),
        ("gptoss", {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__bos_token_id": 1}, "B|B|"),
        (
            "llama",
            {"tokenizer__ggml__model": "llama", "tokenizer__ggml__add_bos_token": False},
            "B|B|E",
        ),
        (
            "gptoss",
            {
                "tokenizer__ggml__model": "gpt2",
                "tokenizer__ggml__add_bos_token": True,
                "tokenizer__ggml__bos_token_id": 3,
                "tokenizer__ggml__eos_token_id": 2,
            },
            "|x|E",
        ),
        ("llama", {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__bos_token_id": 99}, "||"),
    ],
)
def test_bos_is_written_only_if_the_tokenizer_does_not_add_it(
    create: Create, architecture: str, metadata: dict[str, Any], text: str
) -> None:
    template = "{% if true %}{{ bos_token }}|{{ bos_token }}|{{ eos_token }}{% endif %}"
    tokens = {"tokenizer__ggml__tokens": ["U", "B", "E", "x"], "tokenizer__chat_template": template}
    assert form_of(create({}, architecture, **tokens, **metadata)).render(USER) == text


@pytest.mark.parametrize(
    ("template", "stop"),
    [
        ("{% if x %}<|im_start|>{% endif %}", ("<|im_start|>", "<|im_end|>")),
        ("{% if x %}{{ '<|start_header_id|>' }}{% endif %}",
         ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
        ("{% if x %}<|end|><|channel|>{% endif %}", ()),
        ("{% if x %}<|end|>{% endif %}", ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")),
        ("<role>HUMAN</role>{{ messages[0].content }}<|role_end|>{% if x %}{% endif %}", ("<|role_end|>",)),
        (JINJA, ()),
    ],
)  # fmt: skip
def test_markers_of_a_known_format_are_stop_strings(
    create: Create, template: str, stop: tuple[str, ...]
) -> None:
    assert form_of(create(tokenizer__chat_template=template)).traits.stop == stop


def test_a_template_is_checked_in_its_own_language() -> None:
    check_template("{{ .Prompt }}")
    check_template(JINJA)
    for wrong in ("{{ .Prompt", "{{ messages }}", "{% for %}", "{{ if .A }}"):
        with pytest.raises(TemplateError, match="template error: line 1"):
            check_template(wrong)


def test_a_broken_layer_is_an_error_instead_of_a_fallback(create: Create) -> None:
    model = create({"template": "{{ .Prompt"}, tokenizer__chat_template=JINJA)
    with pytest.raises(TemplateError, match="unclosed action"):
        form_of(model)
