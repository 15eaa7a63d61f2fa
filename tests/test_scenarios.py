"""docs/scenarios.md and the tests agree: a promise is on a test that asserts, and nothing else is on any.

Read from the sources, so that it holds whichever tests run, and on machines that skip some of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "scenarios.md"
SECTIONS = ("Promised", "Not needed")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def listed(document: str) -> dict[str, list[int]]:
    """The numbers in the tables of each section, in their order."""
    found = {}
    for section in re.split(r"^## ", document, flags=re.MULTILINE)[1:]:
        cells = re.findall(r"^\| (\d[\d, ]*) \|", section, re.MULTILINE)
        found[section.split("\n", 1)[0]] = [int(number) for cell in cells for number in cell.split(",")]
    return found


def scenarios(node: ast.AST) -> set[int]:
    """The numbers of the `pytest.mark.scenario(...)` within `node`."""
    found: set[int] = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "scenario":
            found.update(int(ast.literal_eval(argument)) for argument in call.args)
    return found


@dataclass
class Sources:
    """Python files by dotted module name."""

    trees: dict[str, ast.Module]
    _asserting: dict[tuple[str, str], bool] = field(default_factory=dict)

    def kept(self) -> tuple[set[int], list[str]]:
        """Numbers on tests that assert, and what is wrong with other uses of the mark."""
        numbers: set[int] = set()
        wrong = []
        for module, tree in self.trees.items():
            on_tests: set[int] = set()
            for test in _tests(tree):
                marks = [*test.decorator_list, *_constants(tree, test.decorator_list)]
                marked = set().union(*map(scenarios, marks))
                if not marked:
                    continue
                on_tests |= marked
                if self.asserts(module, test):
                    numbers |= marked
                else:
                    wrong.append(f"{module}.{test.name} asserts nothing")
            if stray := scenarios(tree) - on_tests:
                wrong.append(f"{module}: {sorted(stray)} on something that is no test")
        return numbers, wrong

    def asserts(self, module: str, function: _Function) -> bool:
        """Whether `function` asserts, or calls a function of the tests that does."""
        key = module, function.name
        if key not in self._asserting:
            self._asserting[key] = False  # while it is looked at: functions may call each other
            self._asserting[key] = any(self._is_assertion(module, node) for node in ast.walk(function))
        return self._asserting[key]

    def _is_assertion(self, module: str, node: ast.AST) -> bool:
        if isinstance(node, ast.Assert):
            return True
        if not isinstance(node, ast.Call):
            return False
        name = ast.unparse(node.func)
        if name in ("pytest.raises", "pytest.warns") or name.rpartition(".")[2].startswith("assert_"):
            return True
        return any(self.asserts(*found) for found in self._definitions(module, name))

    def _definitions(self, module: str, name: str) -> Iterator[tuple[str, _Function]]:
        tree = self.trees[module]
        for node in tree.body:
            if isinstance(node, _Function) and node.name == name:
                yield module, node
            elif isinstance(node, ast.ImportFrom) and node.module in self.trees:
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        yield from self._definitions(node.module, alias.name)


def _tests(tree: ast.Module) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if isinstance(node, _Function) and node.name.startswith("test_"):
            yield node


def _constants(tree: ast.Module, decorators: list[ast.expr]) -> Iterator[ast.AST]:
    """The lists of cases at the top of a module that decorators name."""
    names = {
        node.id for decorator in decorators for node in ast.walk(decorator) if isinstance(node, ast.Name)
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and names & {ast.unparse(target) for target in node.targets}:
            yield node.value


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)


@pytest.mark.slow
def test_every_promise_is_kept_by_a_test_that_asserts() -> None:
    files = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    kept, wrong = Sources({module_name(path): ast.parse(path.read_text()) for path in files}).kept()
    promised = set(listed(DOCUMENT.read_text())["Promised"])
    assert wrong == []
    assert sorted(promised - kept) == [], "promised, but on no test"
    assert sorted(kept - promised) == [], "on a test, but not promised"


def test_every_number_is_listed_once() -> None:
    sections = listed(DOCUMENT.read_text())
    assert tuple(sections) == SECTIONS
    numbers = sorted(number for section in sections.values() for number in section)
    assert numbers == list(range(1, len(numbers) + 1))


def test_numbers_are_read_from_tables_only() -> None:
    document = "# 1\n\n## Promised\n\nNo 7.\n\n| 2 | yes, 8 |\n\n## Not needed\n\n| 3, 4 | a | b |\n"
    assert listed(document) == {"Promised": [2], "Not needed": [3, 4]}


def test_only_marks_on_tests_that_assert_count() -> None:
    source = """
        import pytest
        from tests.other import check, look
        CASES = [1, pytest.param(2, marks=pytest.mark.scenario(1))]
        # scenario 2
        @pytest.mark.scenario(3, 4)
        @pytest.mark.parametrize("case", CASES)
        def test_own(case): assert case
        @pytest.mark.scenario(5)
        def test_by_another(): check()
        @pytest.mark.scenario(6)
        def test_by_none(): look()
        @pytest.mark.scenario(7)
        def test_raises():
            with pytest.raises(ValueError): look()
        @pytest.mark.scenario(8)
        def helper(): assert True
    """
    other = "def check():\n    deeper()\ndef deeper():\n    assert_close(1, 1)\ndef look():\n    look()"
    lines = "\n".join(line[8:] for line in source.splitlines())
    kept, wrong = Sources({"tests.one": ast.parse(lines), "tests.other": ast.parse(other)}).kept()
    assert kept == {1, 3, 4, 5, 7}
    assert wrong == ["tests.one.test_by_none asserts nothing", "tests.one: [8] on something that is no test"]
