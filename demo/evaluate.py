"""Measure the demo model: `python -m demo.evaluate`. Runs the exported file through Puna's own engine.

Writes demo/evaluation.json and the table of demo/README.md: perplexity on held-out text, exact answers to
held-out sums and phrasings of facts, stories that obey the rules of story_checks.py, and the calls of
call_checks.py.
"""

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import puna
from bench.pages import Report
from demo.call_checks import right_calls
from demo.corpus import about, arithmetic, dialogues, facts, stories
from demo.packing import segments
from demo.story_checks import problems
from demo.train import OUT
from puna.batch import Batch
from puna.demo import path as bundled_path
from puna.model.load import load_model

DEMO_README = Path(__file__).with_name("README.md")
GREEDY: dict[str, Any] = {"temperature": 0}
USUAL: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
TOLD_BY_EVERYONE = ("fox", "dragon", "princess", "robot", "cat", "dog", "boy", "girl", "mouse", "pirate")
_PARALLEL = 16  # requests in a batch


def answers(
    model: puna.Model, questions: Sequence[str], options: dict[str, Any], limit: int = 100
) -> list[puna.Completion]:
    """Return the answer to each question, each in a separate conversation with a different seed."""

    def answer(number: int) -> puna.Completion:
        prompt = model.render([{"role": "user", "content": questions[number]}])
        return model.generate(prompt, num_predict=limit, seed=number + 1, **options)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(answer, range(len(questions))))


def exact(
    model: puna.Model, pairs: Sequence[tuple[str, str]], options: dict[str, Any]
) -> tuple[float, list[tuple[str, str, str]]]:
    """Return the fraction of exactly right answers, and the failures: question, expected and given answer."""
    given = answers(model, [q for q, _ in pairs], options)
    wrong = [(q, a, g.text) for (q, a), g in zip(pairs, given, strict=True) if g.text.strip() != a]
    return 1 - len(wrong) / len(pairs), wrong


def held_out_sums(count: int, seed: int) -> list[tuple[str, str]]:
    """Return sums of held-out pairs of numbers, in known and new phrasings."""
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        op, a, b = arithmetic.draw_pair(rng, held=True)
        known = rng.random() < 0.5
        question = (
            arithmetic.question(op, a, b, rng)
            if known
            else arithmetic.question(op, a, b, rng, arithmetic.HELD_OUT_ASK)
        )
        found[question[:1].upper() + question[1:]] = arithmetic.answer(op, a, b)
    return list(found.items())


def held_out_facts(seed: int) -> list[tuple[str, str]]:
    """Return every fact in a held-out phrasing, typed as people type."""
    rng = random.Random(seed)
    pairs = []
    for fact in facts.all_facts():
        question = rng.choice(fact.held_out)
        style = rng.random()
        typed = (
            question[:1].upper() + question[1:] + "?"
            if style < 0.5
            else question.lower() + rng.choice(("", "?"))
        )
        pairs.append((typed, fact.answer))
    return pairs


def puna_questions(seed: int) -> list[tuple[str, str]]:
    """Return one question for each answer about Puna or the model itself."""
    rng = random.Random(seed)
    return [(rng.choice(asks).capitalize() + "?", answers[0]) for asks, answers in about.PAIRS]


def perplexity(path: Path, documents: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the perplexity per token of the assistant's text: of stories, of answers, and of all."""
    loaded = load_model(path)
    totals = {"stories": [0.0, 0], "answers": [0.0, 0]}
    with torch.inference_mode():
        for document in documents:
            ids: list[int] = []
            learn: list[bool] = []
            for text, learned in segments(document):
                piece = loaded.tokenizer.encode(text, add_special=False)
                ids += piece
                learn += [learned] * len(piece)
            ids, learn = ids[:1000], learn[:1000]
            cache = loaded.make_cache(sequences=1, context=1024)
            rows = list(range(len(ids)))
            batch = Batch.of(ids, rows, [0] * len(rows), rows)
            cache.start_forward(batch)
            logits = torch.from_numpy(loaded.ops.numpy(loaded.model.forward(batch.on(loaded.ops), cache)))
            losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
            mask = torch.tensor(learn[1:])
            total = totals[
                "stories" if max(len(t) for t, learned in segments(document) if learned) > 400 else "answers"
            ]
            total[0] += losses[mask].sum().item()
            total[1] += int(mask.sum())
    totals["all"] = [sum(t[0] for t in totals.values()), sum(t[1] for t in totals.values())]
    return {name: math.exp(total / count) for name, (total, count) in totals.items() if count}


def known_words(documents: Sequence[dict[str, Any]]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of the training stories in lower case, and the stories, for detecting copies."""
    words: set[str] = set()
    told: set[str] = set()
    for document in documents:
        for text, learned in segments(document):
            if learned and len(text) > 400:
                body = text.split("<|")[0]
                told.add(body)
                words.update("".join(c if c.isalpha() or c == "'" else " " for c in body.lower()).split())
    return frozenset(words), frozenset(told)


def check_stories(
    model: puna.Model, documents: Sequence[dict[str, Any]], count: int, seed: int
) -> dict[str, Any]:
    """Generate stories with the usual sampling options, half of them for simple requests, and check them."""
    rng = random.Random(seed)
    known, told = known_words(documents)
    requests: list[tuple[str, str]] = []
    for i in range(count):
        if i % 2:
            kind = rng.choice(TOLD_BY_EVERYONE)
            requests.append(
                (rng.choice((f"Tell me a story about a {kind}.", f"tell me a story about a {kind}")), kind)
            )
        else:
            story = stories.draw_story(rng)
            asked = dialogues.typed(stories.draw_request(story, rng), rng, question=False)
            requests.append((asked, story.hero.kind if f" {story.hero.kind}" in asked.lower() else ""))
    tales = answers(model, [r for r, _ in requests], USUAL, limit=700)
    broken: Counter[str] = Counter()
    good = about_it = 0
    for (request, kind), tale in zip(requests, tales, strict=True):
        found = problems(tale.text, tale.reason == "stop", known, request)
        broken.update(found)
        good += not found
        about_it += not kind or kind in tale.text.lower()
    same = answers(model, ["Tell me a story."] * count, USUAL, limit=700)
    return {
        "end by themselves": sum(t.reason == "stop" for t in tales) / count,
        "obey all rules": good / count,
        "are about what was asked": about_it / count,
        "distinct answers to one request": len({t.text for t in same}) / count,
        "copied from the training text": sum(t.text in told for t in [*tales, *same]) / (2 * count),
        "mean words": sum(len(t.text.split()) for t in tales) / count,
        "broken rules": dict(broken),
        "samples": [
            {"request": r, "story": t.text} for (r, _), t in list(zip(requests, tales, strict=True))[:6]
        ],
    }


def evaluate(
    path: Path, out: Path, stories_count: int = 100, sums_count: int = 400, calls_count: int = 400
) -> dict[str, Any]:
    """Return all measurements of the file at `path`; `out` is the folder of the corpus."""
    valid = [json.loads(line) for line in (out / "valid.jsonl").open(encoding="utf-8")][:600]
    train = [json.loads(line) for line in (out / "corpus.jsonl").open(encoding="utf-8")]
    results: dict[str, Any] = {"file_megabytes": round(path.stat().st_size / 1e6, 2)}
    results["perplexity"] = perplexity(path, valid)
    with puna.load(path, parallel=_PARALLEL) as model:
        for name, options in (("greedy", GREEDY), ("usual sampling", USUAL)):
            sums, wrong_sums = exact(model, held_out_sums(sums_count, 1), options)
            known, wrong_facts = exact(model, held_out_facts(2), options)
            own, wrong_own = exact(model, puna_questions(3), options)
            results[name] = {
                "held-out sums": sums,
                "held-out fact phrasings": known,
                "questions about Puna": own,
            }
            results[name]["failures"] = (wrong_sums + wrong_facts + wrong_own)[:40]
        results["stories"] = check_stories(model, train, stories_count, 4)
        results["tools"] = right_calls(model, calls_count, 5)
    return results


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def table(results: dict[str, Any]) -> str:
    """Format the table of demo/README.md."""
    greedy, usual, stories = results["greedy"], results["usual sampling"], results["stories"]
    tools = results["tools"]

    def both(name: str) -> str:
        return f"{percent(greedy[name], 1)} / {percent(usual[name], 1)}"

    text = [
        "| | |",
        "|---|---|",
        f"| file | {results['file_megabytes']:.2f} MB |",
        "| perplexity per token, unseen stories / answers / both "
        f"| {' / '.join(f'{value:.2f}' for value in results['perplexity'].values())} |",
        f"| held-out sums, exactly right: greedy / usual sampling | {both('held-out sums')} |",
        "| all facts in held-out phrasings, word for word: greedy / usual sampling "
        f"| {both('held-out fact phrasings')} |",
        "| questions about Puna and itself, word for word: greedy / usual sampling "
        f"| {both('questions about Puna')} |",
        f"| stories that end by themselves (usual sampling) | {percent(stories['end by themselves'])} |",
        f"| stories that obey all rules | {percent(stories['obey all rules'])} |",
        f"| stories about the requested topic | {percent(stories['are about what was asked'])} |",
        '| distinct answers to the same "Tell me a story." '
        f"| {percent(stories['distinct answers to one request'])} |",
        f"| stories copied from the training text | {percent(stories['copied from the training text'])} |",
        f"| mean length of a story | {stories['mean words']:.0f} words |",
        f"| held-out questions with tools: the right tool and arguments | {percent(tools['calls'], 1)} |",
        "| answers that say what the tools said, word for word "
        f"| {percent(tools['answers with results'], 1)} |",
        "| questions that need no tool, answered word for word with tools at hand "
        f"| {percent(tools['answers without a call'], 1)} |",
        "| objects with the values of a held-out sentence: by a tool / by a schema "
        f"| {percent(tools['objects by a tool'], 1)} / {percent(tools['objects by a schema'], 1)} |",
    ]
    return "\n".join(text) + "\n"


REPORT = Report(
    Path(__file__).with_name("evaluation.json"), "python -m demo.evaluate", dict[str, Any],
    {DEMO_README: table},
)  # fmt: skip


def main() -> None:
    """Evaluate the bundled model, or another file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--out", type=Path, default=OUT, help="folder of corpus.jsonl and valid.jsonl")
    parser.add_argument("--results", type=Path, help="folder for the results (default: beside this program)")
    parser.add_argument("--stories", type=int, default=100)
    arguments = parser.parse_args()
    began = time.monotonic()
    results = evaluate(arguments.model, arguments.out, arguments.stories)
    print(f"{table(results)}\n({time.monotonic() - began:.0f} s)")
    REPORT.write(results, arguments.results)


if __name__ == "__main__":
    main()
