"""The assignment of models to families, by template, architecture, or parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from puna.chat.answers.family import Reading, tags_around
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import FAMILIES, PARSERS, PLAIN, TEMPLATE, family_by, family_of
from puna.chat.templates.go import GoTemplate
from puna.chat.templates.go_chat import call_tags as go_call_tags
from puna.chat.templates.jinja import JinjaTemplate
from puna.chat.templates.jinja_chat import call_tags as jinja_call_tags
from tests.chat.answers.reading import TOOLS, read, tools_of
from tests.chat.templates.published import published
from tests.conftest import find_test_data

#: Published templates, and how their models write calls according to the documentation.
PUBLISHED = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "ByteDance-Seed-OSS": "seed",
    "Cohere2MoE": "command-r7b",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
    "GLM-4.6": "glm",
    "GLM-5.2": "glm",
    "GigaChat3-10B-A1.8B": "gigachat",
    "HuggingFaceTB-SmolLM3-3B": "plain",
    "Kimi-K2-Instruct": "kimi",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiniMax-M2": "minimax",
    "MiroThinker": "mcp",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-v3",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-v3",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4": "deepseek-v4",
    "google-gemma-2-2b-it": "plain",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "llama-cpp-deepseek-r1": "deepseek-v3",
    "meetkai-functionary-medium-v3.1": "functionary-v3.1",
    "meetkai-functionary-medium-v3.2": "functionary",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-old",
    "openai-gpt-oss-120b": "harmony",
    "stepfun-ai-Step-3.5-Flash": "qwen3-coder",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}
#: The same of templates that the test data may lack.
ELSEWHERE = {
    "MiniMax-M3": "minimax-m3",
    "inclusionai-ling-3.0-flash": "ling3",
    "muse-glimmer": "glimmer",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "tencent-Hy3": "hy3",
}
DATA = find_test_data()


@pytest.mark.skipif(DATA is None, reason="no test data: set PUNA_TEST_DATA to a folder with templates/")
@pytest.mark.parametrize(("name", "family"), PUBLISHED.items())
def test_published_templates_are_assigned_to_their_family(name: str, family: str) -> None:
    assert DATA is not None
    text = (DATA / "templates" / f"{name}.jinja").read_text()
    assert family_of(text).name == family


@pytest.mark.skipif(DATA is None, reason="no test data: set PUNA_TEST_DATA to a folder with templates/")
def test_every_published_template_has_a_family() -> None:
    assert DATA is not None
    known = PUBLISHED.keys() | ELSEWHERE.keys()
    assert {path.stem for path in (DATA / "templates").glob("*.jinja")} <= known


@pytest.mark.parametrize(("name", "family"), ELSEWHERE.items())
def test_other_published_templates_are_assigned_to_their_family(name: str, family: str) -> None:
    assert family_of(published(name)).name == family


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{%- set t = ':opensource' %}{{ '<tool_sep{}>'.format(t) }}{{ '<arg_key{}>'.format(t) }}", "hy3"),
        ("{%- set t = '' %}{{ '<tool_sep{}>'.format(t) }}{{ '<arg_key{}>'.format(t) }}", "hy3-preview"),
        ("<tool_calls>\n<tool_call>{name}<tool_sep>\n<arg_key>{key}</arg_key>", "hy3-preview"),
        ("{%- set t = ':opensource' %}{{ '<tool_call{}>'.format(t) }}{{ '<arg_key{}>'.format(t) }}", "hy4"),
        ("<tool_call:opensource>{name}<arg_key:opensource>{key}</arg_key:opensource>", "hy4"),
    ],
)
def test_templates_of_hy_are_told_apart_by_suffix_and_separator(template: str, family: str) -> None:
    assert family_of(template, calls=True).name == family


def test_template_of_solar_open_is_told_by_the_tags_of_its_calls() -> None:
    template = "<|tool_calls|><|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}"
    assert family_of(template, calls=True).name == "solar-open"


def test_parser_takes_precedence_over_template_and_template_over_architecture() -> None:
    assert family_by("lfm2", "hermes").name == "lfm2"
    assert family_by("nobody", "hermes").name == "hermes"
    assert family_by("", "plain", "gptoss").name == "harmony"
    assert family_by("", "template", "hy_v4").name == "hy4"
    assert family_by("", "plain", "llama") is PLAIN
    assert all(named.family in FAMILIES for named in PARSERS.values())


@pytest.mark.parametrize(
    ("texts", "tags"),
    [
        (['<call>{"name": "', '", "arguments": ', "}</call>\n"], Tags("<call>", "</call>")),
        (['[CALLS] [{"name": "', "}]"], Tags("[CALLS]", "")),
        (['\n{"name": "', "}"], Tags("", "")),
        ([], Tags("", "")),
        (["assistant", "}"], Tags("", "")),
    ],
)
def test_call_tags_are_the_texts_around_calls_in_the_template(texts: list[str], tags: Tags) -> None:
    assert tags_around(texts) == tags


@pytest.mark.parametrize(
    ("is_go", "template"),
    [
        (
            True,
            "{{ .Tools }}{{ range .Messages }}{{ if .ToolCalls }}<<call>>\n{{ range .ToolCalls }}"
            '{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}{{ end }}<</call>>'
            "{{ end }}{{ end }}",
        ),
        (
            False,
            "{{ tools }}{% for m in messages %}{% if m.tool_calls %}{{ '<<call>>\\n' }}"
            "{% for c in m.tool_calls %}"
            "{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments + '}' }}"
            "{% endfor %}{{ '<</call>>' }}{% endif %}{% endfor %}",
        ),
    ],
)
def test_a_template_without_a_family_shows_how_calls_are_written(is_go: bool, template: str) -> None:
    assert family_of(template, calls=True) is TEMPLATE
    tags = go_call_tags(GoTemplate(template)) if is_go else jinja_call_tags(JinjaTemplate(template))
    assert tags == Tags("<<call>>", "<</call>>")
    how = Reading(family_by("", "template", "", tags), tools=tools_of(TOOLS))
    found = read(how, ['So: <<call>>{"name": "get_time", "arguments": {}}<</call>> and'])
    assert (found.text, found.calls) == ("So: and", [("get_time", "{}")])


def test_the_page_about_tools_lists_every_family() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
    listed = re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE)
    assert set(listed) == FAMILIES.keys() - {"plain", "template"}
