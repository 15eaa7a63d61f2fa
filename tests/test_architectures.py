"""The architecture table is the only place that defines what a model's architecture implies."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

from puna import architectures
from puna.architectures import ARCHITECTURES, Architecture
from puna.audio import registry as audio_registry
from puna.chat.answers.registry import FAMILIES
from puna.chat.templates.defaults import default_template
from puna.convert.registry import text_families
from puna.tokenizer.patterns import BY_NAME
from puna.vision import registry as vision_registry
from puna.vision.registry import is_read_by

SOURCE = Path(architectures.__file__).parent

#: Files where words that are also architecture names mean something else.
OTHER_MEANINGS = {
    "chat/answers/registry.py": "families of answers, and parsers",
    "chat/templates/defaults.py": "renderers and templates",
    "chat/templates/model_facts.py": "kinds of vocabularies",
    "convert/towers/assumed.py": "projector types",
    "convert/towers/clip.py": "projector types",
    "convert/towers/deepseek_ocr.py": "projector types",
    "convert/towers/llama.py": "projector types",
    "convert/towers/qwen.py": "projector types",
    "convert/vocabulary.py": "kinds of vocabularies",
    "tokenizer/load.py": "kinds of vocabularies",
    "tokenizer/patterns.py": "pre-tokenizers",
    "tokenizer/special_ids.py": "kinds of vocabularies",
    "vision/registry.py": "projector types",
}
#: Arguments where such a word names a pre-tokenizer or a kind of vocabulary.
OTHER_ARGUMENTS = {"pre", "vocabulary"}

#: Types of towers in files of their own.
PROJECTORS = {**vision_registry._PROJECTORS, **audio_registry._PROJECTORS}

RECORDS = pytest.mark.parametrize("record", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())


@RECORDS
def test_record_names_existing_code(record: Architecture) -> None:
    for package, path in (("model.models", record.model), ("vision.towers", record.tower)):
        if path:
            module, _, name = path.partition(":")
            assert hasattr(importlib.import_module(f"puna.{package}.{module}"), name)


@RECORDS
def test_record_names_existing_conventions(record: Architecture) -> None:
    assert not record.pre or record.pre in BY_NAME
    assert not record.answers or record.answers in FAMILIES
    assert all(kind in PROJECTORS for kind in record.projectors)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_record_names_existing_default_templates(name: str) -> None:
    for template in ARCHITECTURES[name].templates:
        assert default_template(name, {template.end}, {template.token})


def test_every_projector_is_read_by_some_architecture() -> None:
    for kind in PROJECTORS:
        assert any(is_read_by(kind, name) for name in ARCHITECTURES)


def test_records_list_the_converters_that_write_them() -> None:
    writers = defaultdict(set)
    for path in (SOURCE / "convert" / "families").glob("[!_]*.py"):
        for family in importlib.import_module(f"puna.convert.families.{path.stem}").FAMILIES:
            writers[family.architecture].add(path.stem)
    assert {family.architecture for family in text_families()} == writers.keys()
    assert writers == {
        name: set(record.converters) for name, record in ARCHITECTURES.items() if record.converters
    }


@pytest.mark.slow
def test_architecture_is_named_in_at_most_three_files() -> None:
    places = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        file = path.relative_to(SOURCE).as_posix()
        if file in OTHER_MEANINGS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        others = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg in OTHER_ARGUMENTS
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in ARCHITECTURES and id(node) not in others:
                places[node.value].add(file)
    assert places.keys() == ARCHITECTURES.keys()
    assert {name: sorted(files) for name, files in places.items() if len(files) > 3} == {}
