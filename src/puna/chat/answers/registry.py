"""The list of families, and the rules that assign a model to one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.chat.answers.families.elements import ElementCalls
from puna.chat.answers.families.functions import GemmaCalls, LlamaCalls, PythonicCalls
from puna.chat.answers.families.glimmer import Glimmer, GlimmerCalls
from puna.chat.answers.families.harmony import Harmony
from puna.chat.answers.families.json_calls import FencedCalls, JsonCalls, KeyedCalls
from puna.chat.answers.families.named_json import (
    DeepSeekCalls,
    Functionary,
    FunctionaryCalls,
    KimiCalls,
    MistralCalls,
    NamedJson,
)
from puna.chat.answers.families.parameters import CODER, GLM, ParameterCalls, TaggedCalls
from puna.chat.answers.families.solar import SolarOpen
from puna.chat.answers.family import AnswerFamily
from puna.chat.answers.parts import Tags
from puna.errors import RequestError, shown

#: Family of unknown models, which may think between tags and call no tools.
PLAIN: Final = AnswerFamily("plain")

#: Family of models whose template alone says how calls are written: JSON objects, perhaps after a tag.
TEMPLATE: Final = AnswerFamily("template", JsonCalls("", between="\n"))


def _deepseek(*, fenced: bool = False) -> DeepSeekCalls:
    return DeepSeekCalls(
        opening="<｜tool▁call▁begin｜>",
        after_name="<｜tool▁sep｜>",
        closing="<｜tool▁call▁end｜>",
        section="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        fenced=fenced,
    )


def _xml(section: str, mark: str = "", *, attribute: bool = False) -> ParameterCalls:
    """`<section><invoke name="f"><parameter name="k">v</parameter></invoke></section>`."""
    return ParameterCalls(
        section=f"<{mark}{section}>",
        section_end=f"</{mark}{section}>",
        opening=f'<{mark}invoke name="',
        after_name='">',
        closing=f"</{mark}invoke>",
        key=f'<{mark}parameter name="',
        after_key=">" if attribute else '">',
        value_end=f"</{mark}parameter>",
        breaks="",
        string_attribute=attribute,
    )


def _keyed(suffix: str, *, separated: bool) -> ParameterCalls:
    """`<tool_call>f<tool_sep><arg_key>k</arg_key><arg_value>v</arg_value></tool_call>` within `<tool_calls>`.

    All tags end in `suffix`. Only models that separate the name break lines, between tags.
    """

    def tag(name: str) -> str:
        return f"<{name}{suffix}>"

    return ParameterCalls(
        section=tag("tool_calls"),
        section_end=tag("/tool_calls"),
        opening=tag("tool_call"),
        after_name=tag("tool_sep") if separated else "",
        closing=tag("/tool_call"),
        key=tag("arg_key"),
        after_key=tag("/arg_key"),
        value=tag("arg_value"),
        value_end=tag("/arg_value"),
        breaks="tags" if separated else "",
        exact=True,
    )


_DSML: Final = "｜DSML｜"

_COHERE_MARKS: Final = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

FAMILIES: Final = {
    family.name: family
    for family in (
        PLAIN,
        TEMPLATE,
        Harmony("harmony"),
        Glimmer("glimmer", GlimmerCalls()),
        SolarOpen("solar-open"),
        AnswerFamily("hermes", TaggedCalls()),
        AnswerFamily("qwen3", TaggedCalls(), calls_end_thinking=True),
        AnswerFamily("qwen3-coder", TaggedCalls(CODER)),
        AnswerFamily("glm", TaggedCalls(GLM)),
        AnswerFamily("ling3", TaggedCalls(GLM), calls_end_thinking=True),
        AnswerFamily("llama3", LlamaCalls()),
        AnswerFamily("llama4", LlamaCalls(pythonic=True)),
        AnswerFamily("mistral", MistralCalls()),
        AnswerFamily("mistral-old", MistralCalls(listed=True)),
        AnswerFamily("deepseek-v3", _deepseek(fenced=True)),
        AnswerFamily("deepseek-v3.1", _deepseek()),
        AnswerFamily("deepseek-v3.2", _xml("function_calls", _DSML, attribute=True)),
        AnswerFamily("deepseek-v4", _xml("tool_calls", _DSML, attribute=True)),
        AnswerFamily(
            "kimi",
            KimiCalls(
                opening="<|tool_call_begin|>",
                after_name="<|tool_call_argument_begin|>",
                closing="<|tool_call_end|>",
                section="<|tool_calls_section_begin|>",
                section_end="<|tool_calls_section_end|>",
            ),
        ),
        AnswerFamily("minimax", _xml("minimax:tool_call")),
        AnswerFamily("minimax-m3", ElementCalls("]<]minimax[>[")),
        AnswerFamily("hy3", _keyed(":opensource", separated=True)),
        AnswerFamily("hy3-preview", _keyed("", separated=True)),
        AnswerFamily("hy4", _keyed(":opensource", separated=False)),
        AnswerFamily(
            "seed",
            ParameterCalls(
                section="<seed:tool_call>",
                section_end="</seed:tool_call>",
                opening="<function=",
                after_name=">",
                closing="</function>",
                key="<parameter=",
                after_key=">",
                breaks="",
            ),
        ),
        AnswerFamily("gemma4", GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>')),
        AnswerFamily("functiongemma", GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>")),
        AnswerFamily("granite", JsonCalls("<|tool_call|>", listed=True), ("<response>", "</response>")),
        AnswerFamily(
            "phi4", JsonCalls("<|tool_call|>", "<|/tool_call|>", listed=True, others=("functools",))
        ),
        AnswerFamily("functools", JsonCalls("functools", listed=True)),
        AnswerFamily("command-r", FencedCalls("Action:")),
        AnswerFamily(
            "command-r7b",
            JsonCalls(
                "<|START_ACTION|>", "<|END_ACTION|>", listed=True, name="tool_name", arguments="parameters"
            ),
            _COHERE_MARKS,
        ),
        Functionary("functionary", FunctionaryCalls()),
        AnswerFamily("functionary-v3.1", NamedJson("<function=", ">", "</function>")),
        AnswerFamily("lfm2", PythonicCalls("<|tool_call_start|>", "<|tool_call_end|>")),
        AnswerFamily("olmo3", PythonicCalls("<function_calls>", "</function_calls>", listed=False)),
        AnswerFamily("apertus", KeyedCalls("<|tools_prefix|>", "<|tools_suffix|>")),
        AnswerFamily("apriel", JsonCalls("<tool_calls>", "</tool_calls>", listed=True)),
        AnswerFamily("nemotron", JsonCalls("<TOOLCALL>", "</TOOLCALL>", listed=True)),
        AnswerFamily("gigachat", JsonCalls("function call<|role_sep|>", "<|message_sep|>")),
        AnswerFamily(
            "mcp",
            NamedJson(
                "<use_mcp_tool>",
                "</tool_name>\n<arguments>",
                "</arguments>\n</use_mcp_tool>",
                before_name="<tool_name>",
            ),
        ),
    )
}


@dataclass(frozen=True)
class _Mark:
    """Marks by which a family's template is recognised: it has all `texts` and none of `absent`."""

    family: str
    texts: tuple[str, ...]
    absent: tuple[str, ...] = ()


#: The first match counts.
_MARKS: Final = (
    _Mark("harmony", ("<|channel|>", "<|message|>", "<|start|>")),
    _Mark("glimmer", ("<atem:function_calls>", "<|message|>")),
    _Mark("solar-open", ("<|tool_call:begin|>", "<|tool_call:args|>")),
    _Mark("deepseek-v4", ("DSML", "tool_calls>"), ("function_calls>",)),
    _Mark("deepseek-v3.2", ("DSML", "function_calls>")),
    _Mark("deepseek-v3", ("<｜tool▁calls▁begin｜>", "```json")),
    _Mark("deepseek-v3.1", ("<｜tool▁calls▁begin｜>",)),
    _Mark("kimi", ("<|tool_calls_section_begin|>",)),
    _Mark("minimax", ("<minimax:tool_call>",)),
    _Mark("minimax-m3", ("]<]minimax[>[", "<tool_call>", "<invoke name=")),
    # Templates of Hy put their tags together from a name and a suffix.
    _Mark("hy3", ("<tool_sep", "<arg_key", ":opensource")),
    _Mark("hy3-preview", ("<tool_sep", "<arg_key")),
    _Mark("hy4", ("<arg_key", ":opensource")),
    _Mark("seed", ("<seed:tool_call>",)),
    _Mark("gemma4", ("<|tool_call>call:",)),
    _Mark("functiongemma", ("<start_function_call>",)),
    _Mark("lfm2", ("<|tool_call_start|>",)),
    _Mark("lfm2", ("<|tool_list_start|>",)),
    _Mark("lfm2", ("List of tools: [",)),
    _Mark("olmo3", ("<function_calls>", "<functions>")),
    _Mark("apertus", ("<|tools_prefix|>",)),
    _Mark("command-r7b", ("<|START_ACTION|>",)),
    _Mark("command-r", ("Action:", "```json", "tool_name")),
    _Mark("phi4", ("<|/tool_call|>",)),
    _Mark("functools", ("functools[",)),
    _Mark("granite", ("<|tool_call|>",)),
    _Mark("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    _Mark("mistral-old", ("[TOOL_CALLS]",)),
    _Mark("ling3", ("<role>ASSISTANT</role>", "<arg_key>")),
    _Mark("glm", ("<tool_call>", "<arg_key>")),
    _Mark("qwen3-coder", ("<tool_call>", "<function=", "<parameter=")),
    _Mark("functionary-v3.1", ("<function=", "</function>"), ("<parameter=",)),
    _Mark("functionary-v3.1", ("{start_tag}={function_name}",)),
    _Mark("functionary", (">>>all",)),
    _Mark("functionary", (">>>", "recipient")),
    _Mark("nemotron", ("<TOOLCALL>",)),
    _Mark("apriel", ("<tool_calls>",)),
    _Mark("mcp", ("<use_mcp_tool>",)),
    _Mark("gigachat", ("function call", "<|role_sep|>")),
    _Mark("hermes", ("<tool_call>",)),
    _Mark("hermes", ("xml_tools",)),
    _Mark("llama4", ("<|python_start|>",)),
    _Mark("llama4", ("[func_name1(",)),
    _Mark("llama3", ("<|python_tag|>",)),
    _Mark("llama3", ("<|start_header_id|>", '"parameters": ')),
    _Mark("llama3", ("<|start_header_id|>", '"parameters":')),
)


@dataclass(frozen=True)
class Named:
    """A `PARSER` that a Modelfile may name, as Ollama defines it."""

    family: str
    thinking: Tags | None = None
    begins: Literal["prompt", "asked", "always"] = "prompt"  # when an answer starts inside thinking
    calls: bool = True
    always_splits: bool = False  # also without thinking in the request

    def begins_thinking(self, asked: bool, tools: bool) -> bool:
        """Return whether an answer starts inside thinking without a tag, whatever the prompt ends in."""
        if self.begins == "asked":
            return asked and not (tools and self.family == "deepseek-v3")
        return self.begins == "always"


_THINK: Final = Tags("<think>", "</think>")

PARSERS: Final = {
    "qwen3": Named("hermes"),
    "qwen3-thinking": Named("qwen3", _THINK, "asked"),
    "qwen3-vl-instruct": Named("hermes"),
    "qwen3-vl-thinking": Named("qwen3", _THINK, "always", always_splits=True),
    "qwen3-coder": Named("qwen3-coder"),
    "qwen3.5": Named("qwen3-coder", _THINK, "asked"),
    "ornith": Named("qwen3-coder", _THINK, "asked"),
    "nemotron-3-nano": Named("qwen3-coder", _THINK, "asked"),
    "nemotron-3.5-nano": Named("qwen3-coder", _THINK, "asked"),
    "harmony": Named("harmony"),
    "deepseek3": Named("deepseek-v3.1", _THINK, "asked"),
    "cogito": Named("deepseek-v3", _THINK, "asked"),
    "olmo3": Named("olmo3"),
    "olmo3-think": Named("olmo3", _THINK, "always", calls=False, always_splits=True),
    "gemma4": Named("gemma4", Tags("<|channel>thought", "<channel|>")),
    "gemma4-no-thinking": Named("gemma4"),
    "functiongemma": Named("functiongemma"),
    "glm-4.7": Named("glm", _THINK, "asked"),
    "glm-ocr": Named("glm", _THINK, always_splits=True),
    "lfm2": Named("lfm2"),
    "lfm2-thinking": Named("lfm2", _THINK, "asked"),
    "laguna": Named("glm", _THINK, always_splits=True),
    "poolside-v1": Named("glm", _THINK, always_splits=True),
    "cohere": Named("command-r7b", Tags("<|START_THINKING|>", "<|END_THINKING|>"), "asked"),
    "glimmer": Named("glimmer"),
    "ministral": Named("mistral", Tags("[THINK]", "[/THINK]"), always_splits=True),
    "passthrough": Named("plain", calls=False),
}


def check_parser(parser: str) -> None:
    """Raise RequestError if `parser` is unknown."""
    if parser not in PARSERS:
        raise RequestError(
            f"unknown parser {shown(parser)}: this version knows {', '.join(sorted(PARSERS))}; "
            "use one of these, or none, and the model's template tells how answers are read"
        )


def family_of(template: str, *, calls: bool = False) -> AnswerFamily:
    """Return the family whose markup a template contains.

    For a template of no known family that handles `calls`, the template itself shows how they are written.
    """
    for mark in _MARKS:
        if all(text in template for text in mark.texts) and not any(text in template for text in mark.absent):
            return FAMILIES[mark.family]
    return TEMPLATE if calls else PLAIN


@lru_cache(maxsize=256)
def family_by(parser: str, name: str, architecture: str = "", call_tags: Tags | None = None) -> AnswerFamily:
    """Return a model's family: the one of the author's `parser` if it is known.

    Otherwise it is the one called `name`, as found by `family_of`, unless the architecture decides.
    """
    if parser in PARSERS:
        return FAMILIES[PARSERS[parser].family]
    if name == TEMPLATE.name and call_tags is not None:
        return AnswerFamily(name, JsonCalls(call_tags.opening, call_tags.closing, between="\n"))
    if name in ("", PLAIN.name, TEMPLATE.name):
        name = ARCHITECTURES.get(architecture, UNKNOWN).answers or name
    return FAMILIES.get(name, PLAIN)
