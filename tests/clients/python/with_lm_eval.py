"""lm-eval: likelihoods with local-completions, and answers with local-chat-completions.

    python with_lm_eval.py URL FOLDER

FOLDER has the tokenizer of the server's model `tiny`.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TASKS = Path(__file__).parents[1] / "tasks"
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "any"}
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
os.chdir(TASKS)  # the tasks name their files relative to it

import lm_eval  # noqa: E402 - it reads the environment when it is imported
from asked import MODEL, URL, report  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402


def samples(kind: str, task: str, arguments: dict[str, Any], **more: Any) -> Any:
    result = lm_eval.simple_evaluate(
        model=kind,
        model_args={"num_concurrent": 1, "max_retries": 1, **arguments},
        tasks=[task],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        **more,
    )
    return result["samples"][task]


def likelihoods(task: str) -> Any:
    """Return each request's texts, with the log-likelihood and whether greedy decoding gives the same."""
    arguments = {
        "model": "tiny",
        "base_url": f"{URL}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": sys.argv[2],
        "max_length": 256,
    }
    found = []
    for sample in samples("local-completions", task, arguments):
        for asked, answer in zip(sample["arguments"], sample["filtered_resps"], strict=True):
            found.append([list(asked), answer])
    return found


def chat() -> Any:
    arguments = {"model": MODEL, "base_url": f"{URL}/v1/chat/completions"}
    found = samples("local-chat-completions", "puna_words", arguments, apply_chat_template=True)
    return [sample["resps"][0][0] for sample in found]


report(
    choices=lambda: likelihoods("puna_choices"),
    texts=lambda: likelihoods("puna_texts"),
    chat=chat,
)
