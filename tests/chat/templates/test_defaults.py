"""Default templates agree with those of published models."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from puna.chat.answers.registry import PARSERS, family_of
from puna.chat.templates.choose import chat_format
from puna.chat.templates.defaults import RENDERERS, default_template, rendered_by
from puna.chat.templates.jinja_chat import JinjaFormat
from puna.chat.templates.messages import ChatFormat, SpecialTokens
from puna.chat.templates.model_facts import ModelFacts
from puna.errors import RequestError
from puna.model.registry import supported
from tests.chat.templates.conversations import AGAIN, ANSWER, SYSTEM, TOOLS, USER
from tests.chat.templates.published import published
from tests.chat.templates.test_jinja_matrix import CHATS, DOCUMENTS, MORE_TOOLS, THINKS, turn

TOKENS = SpecialTokens({"bos_token": "<s>", "eos_token": "</s>"})
PLAIN = {"single": [USER], "system": [SYSTEM, USER, ANSWER, AGAIN], "turns": [USER, ANSWER, AGAIN]}

#: Architectures with the end of an answer, a token that tells them apart, and the name of a published
#: template. Defaults marked "turns" support more than the published template, which leaves calls out.
PUBLISHED = [
    ("apertus", "<|assistant_end|>", "", "Apertus-8B-Instruct", ""),
    ("bailingmoe3", "<|role_end|>", "", "inclusionai-ling-3.0-flash", ""),
    ("qwen2", "<|im_end|>", "", "Qwen-Qwen2.5-7B-Instruct", ""),
    ("qwen3", "<|im_end|>", "", "Qwen-Qwen3-0.6B", ""),
    ("qwen35", "<|im_end|>", "", "Qwen3.5-4B", ""),
    ("deepseek2", "<｜end▁of▁sentence｜>", "<｜User｜>", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", ""),
    ("deepseek2", "<|im_end|>", "<|im_middle|>", "Kimi-K2-Instruct", ""),
    ("gemma2", "<end_of_turn>", "", "google-gemma-2-2b-it", "turns"),
    ("gemma4", "<turn|>", "", "google-gemma-4-31B-it-interleaved", ""),
    ("glm4moe", "<|user|>", "", "GLM-4.6", ""),
    ("gpt-oss", "<|return|>", "", "openai-gpt-oss-120b", ""),
    ("granite", "<|end_of_text|>", "", "ibm-granite-granite-3.3-2B-Instruct", "turns"),
    ("granitehybrid", "<|end_of_text|>", "", "ibm-granite-granite-4.0", ""),
    ("hy_v3", "<｜hy_eos:opensource｜>", "<｜hy_User:opensource｜>", "tencent-Hy3", ""),
    ("lfm2", "<|im_end|>", "", "LFM2-8B-A1B", "turns"),
    ("llama", "<|eot_id|>", "<|python_tag|>", "meta-llama-Llama-3.3-70B-Instruct", ""),
    ("minimax-m2", "[e~[", "", "MiniMax-M2", ""),
    ("minimax-m3", "[e~[", "", "MiniMax-M3", ""),
    ("mistral3", "</s>", "", "mistralai-Ministral-3-14B-Reasoning-2512", "instructed"),
    ("seed_oss", "<seed:eos>", "", "ByteDance-Seed-OSS", ""),
    ("smollm3", "<|im_end|>", "", "HuggingFaceTB-SmolLM3-3B", ""),
    ("step35", "<|im_end|>", "", "stepfun-ai-Step-3.5-Flash", ""),
]

#: Models of these architectures only continue texts, embed, read pages, or have a template in every file.
NO_CHAT = {
    *(
        "arwkv7",
        "falcon-h1",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3n",
        "llama",
        "mllama",
        "rwkv6qwen2",
    ),  # chat models only with certain end tokens
    *("codeshell", "dbrx", "deepseek", "exaone", "internlm2", "minicpm", "minicpm3", "orion", "xverse"),
    *("eagle3", "gemma4-assistant"),  # only draft
    *("arctic", "baichuan", "grok", "jais", "jais2", "openelm", "refact"),
    *("bloom", "falcon", "gpt2", "gptneox", "mpt", "nemotron", "phi2", "stablelm", "starcoder"),
    *("arcee", "granite_swa", "mellum"),
    *("bitnet", "bitnet-b1.58", "deepseek4", "glm5-next", "hy_v4", "jamba", "qwen4exp"),
    *(
        "mamba",
        "mamba2",
        "plamo3",
        "starcoder2",
        "t5",
        "deepseek2-ocr",
        "deepseekocr",
        "mimo2",
    ),
    *(
        "bert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
    ),
    "t5encoder",
    "whisper",
}
#: Marks of chat models in architectures that also have models which only continue texts.
TOLD = {
    "apertus": {"ends": {"<|assistant_end|>"}},
    "hy_v3": {"tokens": {"<｜hy_User:opensource｜>"}},
    "smallthinker": {"ends": {"<|im_end|>"}},
    "step35": {"ends": {"<|im_end|>"}},
    "nemotron_h": {"tokens": {"<SPECIAL_11>"}},
    "phi3": {"ends": {"<|end|>"}},
    **{f"qwen{kind}": {"ends": {"<|im_end|>"}} for kind in ("2", "25vl", "2moe", "2vl", "3", "3moe")},
}


def default(architecture: str, end: str, tokens: set[str] | None = None, own: str = "") -> ChatFormat:
    facts = ModelFacts(
        architecture=architecture,
        tokens=TOKENS,
        ends=frozenset({end}),
        telling_tokens=frozenset(tokens or ()),
        chat_template=own,
    )
    return chat_format(facts)


@pytest.mark.parametrize(("architecture", "end", "token", "file", "only"), PUBLISHED)
def test_a_default_renders_like_the_published_template(
    architecture: str, end: str, token: str, file: str, only: str
) -> None:
    own = JinjaFormat(published(file), TOKENS)
    form = default(architecture, end, {token})
    assert isinstance(form, JinjaFormat)
    chats = PLAIN if only == "turns" else {**PLAIN, **CHATS}
    compared = 0
    for (name, chat), (think, _) in itertools.product(chats.items(), THINKS):
        if only == "instructed" and chat[0]["role"] != "system":
            continue  # the published template adds its author's instructions
        for tools, documents in ((None, []), (TOOLS, []), (MORE_TOOLS, []), (None, DOCUMENTS)):
            where = f"{name}, {think}, {len(tools or ())} tools, {len(documents)} documents"
            given: dict[str, Any] = {"tools": tools, "documents": documents, "think": think}
            assert form.render(chat, **given) == own.render(chat, **given), where
            compared += 1
    assert compared >= 24
    assert family_of(form.template, calls=True).name == family_of(own.template, calls=True).name
    if only != "instructed":  # other models of this architecture do not think
        assert form.traits.thinking_tags == own.traits.thinking_tags


def test_every_architecture_that_chats_has_a_default() -> None:
    for architecture in supported():
        template = default_template(architecture, **({"ends": set()} | TOLD.get(architecture, {})))  # type: ignore[arg-type]
        assert bool(template) == (architecture not in NO_CHAT), architecture


def test_jais2_has_no_template_although_its_turns_end_as_llama3s() -> None:
    assert default_template("jais2", {"<|eot_id|>"}) == ""
    assert "start_header_id" in default_template("nemotron", {"<|eot_id|>"})


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_every_renderer_writes_whole_conversations(name: str) -> None:
    form = JinjaFormat(rendered_by(name), TOKENS)
    for chat in (*PLAIN.values(), *CHATS.values()):
        for tools, think in itertools.product((None, MORE_TOOLS), (None, False, True)):
            text = form.render(chat, tools=tools, think=think)
            said = chat[-1]["content"]
            assert (
                said in text
                or json.dumps(said)[1:-1] in text
                or (chat[-1]["role"] == "tool" and not form.traits.takes_tools)
            )
            assert not re.search(r"\{[{%#]\s|\s[%#}]\}", text)
    call = [USER, *CHATS["one"][1:]]
    assert "Paris" in form.render(call, tools=TOOLS) or not form.traits.takes_tools


#: The parser that Ollama's own models name beside a renderer.
BESIDE = {
    "deepseek3.1": "deepseek3", "gemma4-large": "gemma4", "gemma4-small": "gemma4", "olmo3.1": "olmo3",
    "olmo3-32b-think": "olmo3-think", "qwen3.8": "qwen3.5",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_parsers_read_what_their_renderers_write(name: str) -> None:
    named = PARSERS[BESIDE.get(name, name)]
    form = JinjaFormat(rendered_by(name), TOKENS)
    if form.traits.takes_tools:
        assert form.traits.family == ("hermes" if named.family == "qwen3" else named.family)
    if named.thinking is not None and form.traits.thinking_tags is not None:
        assert form.traits.thinking_tags == named.thinking


#: Whole prompts, from the tests of Ollama's renderers.
WHOLE = {
    "glm-4.7": "[gMASK]<sop><|user|>Hello<|assistant|><think>",
    "nemotron-3-nano": "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n",
    "lfm2": "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "olmo3": "<|im_start|>system\nYou are a helpful function-calling AI assistant. You do not currently "
    "have access to any functions. <functions></functions><|im_end|>\n"
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "olmo3.1": "<|im_start|>system\nYou are Olmo, a helpful AI assistant built by Ai2. Your date cutoff is "
    "December 2024, and your model weights are available at https://huggingface.co/allenai. You do not "
    "currently have access to any functions. <functions></functions><|im_end|>\n"
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "olmo3-32b-think": "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n"
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>",
    "cogito": "<s>You are Cogito, an AI assistant created by Deep Cogito, which is an AI research lab based "
    "in San Francisco.<｜User｜>Hello<｜Assistant｜>",
    "deepseek3.1": "<s><｜User｜>Hello<｜Assistant｜></think>",
    "functiongemma": "<s><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n",
    "gemma4-small": "<s><|turn>user\nHello<turn|>\n<|turn>model\n",
    "gemma4-large": "<s><|turn>user\nHello<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
    "qwen3-vl-thinking": "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "qwen3-coder": "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_renderers_write_the_same_prompts_as_ollama(name: str) -> None:
    text = JinjaFormat(rendered_by(name), TOKENS).render([{"role": "user", "content": "Hello"}])
    assert text == WHOLE[name]


def test_the_error_of_an_unknown_renderer_lists_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"unknown renderer 'qwen9'.*qwen3-coder.*TEMPLATE"):
        rendered_by("qwen9")


def test_llama_3_gets_the_template_of_its_first_model_card() -> None:
    form = JinjaFormat(default_template("llama", {"<|eot_id|>"}), SpecialTokens({"bos_token": "<B>"}))
    assert form.render([SYSTEM, USER]) == (
        "<B><|start_header_id|>system<|end_header_id|>\n\nYou are terse.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello, how are you?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_phi_3_gets_the_template_of_its_model_card() -> None:
    form = JinjaFormat(default_template("phi3", {"<|end|>"}))
    assert form.render([SYSTEM, USER]) == (
        "<|system|>\nYou are terse.<|end|>\n<|user|>\nHello, how are you?<|end|>\n<|assistant|>\n"
    )


def test_types_of_apertus_are_written_as_by_the_published_template() -> None:
    values: dict[str, Any] = {
        "names": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "nullable": True},
        "sizes": {"type": "array", "items": {"type": "integer"}, "description": "all <of> them"},
        "lists": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
        "long": {"type": "array", "items": {"type": "string", "enum": ["x" * 30, "y" * 30]}},
        "pairs": {"type": "array", "items": {"type": "object", "properties": {"x" * 30: {}, "y": {}}}},
        "any": {"type": "array"},
        "union": {"type": ["string", "null"]},
        "one": {"type": ["number"], "default": 1.5},
        "either": {
            "oneOf": [{"type": "string", "description": "a name"}, {"type": "object", "default": {"a": 1}}]
        },
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "note": {"type": "string", "nullable": True, "default": "no"},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "tags": {"type": "object"}},
            "required": ["x"],
        },
        "free": {},
        "on": {"type": "boolean"},
    }
    parameters = {"type": "object", "properties": values, "required": ["names"]}
    function = {"name": "f", "description": "all types", "parameters": parameters}
    tools = [*MORE_TOOLS, {"type": "function", "function": function}]
    own = JinjaFormat(published("Apertus-8B-Instruct"), TOKENS)
    form = default("apertus", "<|assistant_end|>")
    assert form.render([USER], tools=tools) == own.render([USER], tools=tools)


def test_values_that_minimax_m3_leaves_out_are_those_of_the_published_template() -> None:
    nested = {"a": None, "b": {"c": None, "d": [None, True, 1.5, "x", [], {}]}, "e": False, "f": ""}
    chat = [USER, *turn(("f", nested))]
    own, form = JinjaFormat(published("MiniMax-M3"), TOKENS), default("minimax-m3", "[e~[")
    assert form.render(chat, tools=TOOLS) == own.render(chat, tools=TOOLS)


#: Prompts of published templates by how much to think, for tests without those templates.
SHORT = {
    "hy_v3": {
        None: "<｜hy_begin_of_sentence:opensource｜><｜reasoning_mode:opensource｜>reasoning_effort:no_think"
        "<｜hy_User:opensource｜>Hello<｜hy_Assistant:opensource｜><think:opensource></think:opensource>",
        "low": "<｜hy_begin_of_sentence:opensource｜><｜reasoning_mode:opensource｜>reasoning_effort:low"
        "<｜hy_User:opensource｜>Hello<｜hy_Assistant:opensource｜><think:opensource>",
    },
    "bailingmoe3": {
        True: "<role>SYSTEM</role>detailed thinking on<|role_end|><role>HUMAN</role>Hello<|role_end|>"
        "<role>ASSISTANT</role>\n<think>",
        False: "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>Hello<|role_end|>"
        "<role>ASSISTANT</role>\n<think></think>",
    },
}


@pytest.mark.parametrize("architecture", SHORT)
def test_defaults_open_and_close_a_thought_as_asked(architecture: str) -> None:
    form = JinjaFormat(default_template(architecture, set(), {"<｜hy_User:opensource｜>"}), TOKENS)
    for think, prompt in SHORT[architecture].items():
        assert form.render([{"role": "user", "content": "Hello"}], think=think) == prompt


@pytest.mark.parametrize("own", ["", "rwkv-world"])
def test_rwkv_gets_the_template_of_its_world_models(own: str) -> None:
    assert default("rwkv7", "<s>", own=own).render([SYSTEM, USER, ANSWER, AGAIN]) == (
        f"<s>System: You are terse.\n\nUser: Hello, how are you?\n\nAssistant: {ANSWER['content']}\n\n"
        f"User: {AGAIN['content']}\n\nAssistant:"
    )


@pytest.mark.parametrize(
    ("architecture", "end"), [("llama", "</s>"), ("llama", "<|end|>"), ("x", ""), ("qwen3", "<|endoftext|>")]
)
def test_a_base_model_gets_the_plain_prompt(architecture: str, end: str) -> None:
    assert default(architecture, end).template == "{{ .Prompt }}"
