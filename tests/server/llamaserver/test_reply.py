"""Parts of a reply that its client chooses."""

from __future__ import annotations

import pytest

from puna.protocol import Done
from puna.server.llamaserver.reply import CompletionReply, Timings, chosen

DONE = Done(
    id=1,
    reason="stop",
    prompt_eval_count=10,
    prompt_eval_duration=4_000_000,
    eval_count=5,
    eval_duration=10_000_000,
    cached=2,
    drafted=4,
    accepted=3,
)


def test_timings_count_the_prompt_without_its_cached_tokens() -> None:
    found = Timings.of(DONE)
    assert (found.cache_n, found.prompt_n, found.prompt_ms, found.prompt_per_token_ms) == (2, 8, 4.0, 0.5)
    assert found.prompt_per_second == pytest.approx(2000)
    assert (found.predicted_n, found.predicted_ms, found.predicted_per_token_ms) == (5, 10.0, 2.0)
    assert (found.draft_n, found.draft_n_accepted) == (4, 3)


def test_chosen_fields_keep_their_paths_as_names() -> None:
    reply = CompletionReply(
        index=0,
        content="hi",
        tokens=[],
        id_slot=-1,
        stop=True,
        tokens_predicted=1,
        tokens_evaluated=1,
        timings=Timings.of(DONE),
    )
    assert chosen(reply, []) is reply
    found = chosen(reply, ["content", "timings/prompt_n", "timings/none", "content/x", "prompt", ""])
    assert found == {"content": "hi", "timings/prompt_n": 8}
