"""The demo model's vocabulary: byte-level BPE, single digits, three control tokens; and its chat format."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL = (BOS, START, END)
BOS_ID, START_ID, END_ID = 0, 1, 2

# The pre-tokenizer called "qwen2" in GGUF: letters with one leading character, single digits.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE = "qwen2"

# Each tool is a line after the system message: `weather(city, days: integer, unit: celsius|fahrenheit)`.
CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
{{- 'Tools:' }}
{%- for tool in tools %}{{ '\\n' + tool.function.name + '(' }}
{%- for name, kind in ((tool.function.parameters or {}).properties or {}).items() %}
{{- name if loop.first else ', ' + name }}
{%- if kind.enum %}{{ ': ' + kind.enum | join('|') }}
{%- elif kind.type is string and kind.type != 'string' %}{{ ': ' + kind.type }}{% endif %}
{%- endfor %}{{ ')' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{% if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def train_vocabulary(texts: Iterable[str], size: int, control: Sequence[str] = CONTROL) -> Tokenizer:
    """Train a byte-level BPE tokenizer of at most `size` tokens, those of `control` first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(control),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_vocabulary(path: Path) -> Tokenizer:
    """Load the tokenizer made by `train_vocabulary` from its JSON file."""
    return Tokenizer.from_file(str(path))


def chat_prompt(messages: Iterable[dict[str, str]]) -> str:
    """Return the output of `CHAT_TEMPLATE` up to the start of the assistant's answer, without BOS."""
    turns = "".join(f"{START}{m['role']}\n{m['content']}{END}\n" for m in messages)
    return f"{turns}{START}assistant\n"
