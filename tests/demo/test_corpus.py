"""The synthetic text: reproducible, correct, varied, and without held-out questions."""

from __future__ import annotations

import itertools
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.corpus import arithmetic, facts, stories
from demo.corpus.snippets import draw_snippet
from demo.corpus.template import expand, polish
from demo.generate import MIX, documents, draw, length
from demo.story_checks import NAMES, problems

SUM = re.compile(r"(\d+) ([+×÷-]) (\d+) = (\d+)\.")


def contents(document: dict, role: str) -> list[str]:
    return [m["content"] for m in document.get("messages", []) if m["role"] == role]


@pytest.fixture(scope="module")
def sample() -> list[dict]:
    return list(documents(seed=7, characters=1_500_000))


def test_the_same_seed_gives_the_same_documents_and_another_seed_does_not() -> None:
    first, again, other = (list(documents(seed, 30_000)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_the_kinds_of_text_have_the_right_proportions() -> None:
    rng = random.Random(1)
    written = dict.fromkeys(MIX, 0)
    for document in documents(3, 400_000):
        kind = min(MIX, key=lambda k: written[k] / MIX[k])
        written[kind] += length(document)
    assert sum(written.values()) >= 400_000
    for kind, share in MIX.items():
        assert written[kind] / sum(written.values()) == pytest.approx(share / sum(MIX.values()), abs=0.01)
        assert length(draw(kind, rng)) > 0


@pytest.mark.slow
def test_every_sum_in_the_answers_is_right(sample: list[dict]) -> None:
    checked = 0
    for document in sample:
        for answer in contents(document, "assistant"):
            for a, sign, b, result in SUM.findall(answer):
                exact = {
                    "+": Fraction(int(a)) + int(b),
                    "-": Fraction(int(a)) - int(b),
                    "×": Fraction(int(a)) * int(b),
                    "÷": Fraction(int(a), max(int(b), 1)),
                }[sign]
                assert exact == int(result), answer
                checked += 1
    assert checked > 1000


def test_held_out_sums_are_never_in_the_training_text(sample: list[dict]) -> None:
    for document in sample:
        for answer in contents(document, "assistant"):
            for a, sign, b, _ in SUM.findall(answer):
                assert not arithmetic.held_out(sign, int(a), int(b)), answer


def test_a_twelfth_of_the_sums_is_held_out_in_either_order() -> None:
    pairs = list(itertools.product(range(3, 100), repeat=2))
    held = sum(arithmetic.held_out("+", a, b) for a, b in pairs)
    assert 0.06 < held / len(pairs) < 0.11
    assert all(arithmetic.held_out("+", a, b) == arithmetic.held_out("+", b, a) for a, b in pairs)


def test_held_out_phrasings_are_never_in_the_training_text(sample: list[dict]) -> None:
    asked = {re.sub(r"[^a-z0-9' ]", "", q.lower()).strip() for d in sample for q in contents(d, "user")}
    for fact in facts.all_facts():
        for question in fact.held_out:
            assert re.sub(r"[^a-z0-9' ]", "", question.lower()).strip() not in asked


def test_no_question_has_two_answers() -> None:
    answers: dict[str, str] = {}
    for fact in facts.all_facts():
        assert set(fact.questions).isdisjoint(fact.held_out)
        for question in fact.questions + fact.held_out:
            assert answers.setdefault(question.lower(), fact.answer) == fact.answer, question


@pytest.mark.parametrize("plot", stories.PLOTS, ids=lambda plot: plot.name)
def test_stories_of_every_plot_obey_the_rules(plot: stories.Plot) -> None:
    for seed in range(60):
        story = stories.draw_story(random.Random(seed), plot)
        words = frozenset(re.findall(r"[a-z']+", story.text.lower()))
        assert problems(story.text, True, words, story.text) == [], story.text
        assert not re.search(r"[<>{}|]", story.text)
        assert story.hero.name in story.text
        assert story.friend.name[0] != story.hero.name[0]


def test_snippets_are_clean_and_repeat_their_names() -> None:
    rng = random.Random(8)
    for _ in range(500):
        snippet = draw_snippet(rng)
        assert not re.search(r"[<>{}|]|\ba [aeio]|  ", snippet), snippet
        names = [word for word in re.findall(r"[A-Z][a-z]+", snippet) if word in NAMES]
        assert len(names) != len(set(names)) or len(names) < 2, snippet


@pytest.mark.slow
def test_stories_rarely_repeat() -> None:
    rng = random.Random(11)
    texts = [stories.draw_story(rng).text for _ in range(3000)]
    assert len(set(texts)) == len(texts)


def test_answers_about_a_story_only_name_its_characters() -> None:
    rng = random.Random(2)
    named = 0
    for _ in range(500):
        story = stories.draw_story(rng)
        _, answer = stories.draw_question(story, rng)
        names = NAMES & set(re.findall(r"[A-Z][a-z]+", answer))
        assert names <= {story.hero.name, story.friend.name}, answer
        named += bool(names)
    assert named > 300


def test_templates_nest_alternatives_and_fill_slots() -> None:
    rng = random.Random(0)
    seen = {expand("{a|b{c|d}} <x>, <X>", {"x": "one"}, rng) for _ in range(100)}
    assert seen == {"a one, One", "bc one, One", "bd one, One"}
    with pytest.raises(KeyError):
        expand("<missing>", {}, rng)
    with pytest.raises(ValueError, match="unclosed brace"):
        expand("{a|b", {}, rng)


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        ("a owl saw a unicorn. it left", "An owl saw a unicorn. It left"),
        ("A apple  and a pear .", "An apple and a pear."),
        ("he waited a hour", "He waited an hour"),
    ],
)
def test_polish_fixes_articles_spaces_and_capitals(raw: str, right: str) -> None:
    assert polish(raw) == right


@given(st.text(alphabet="abc <>{}|", max_size=30))
def test_any_template_expands_or_is_refused(template: str) -> None:
    try:
        text = expand(template, {}, random.Random(0))
    except (KeyError, ValueError):
        return
    assert "{" not in text
