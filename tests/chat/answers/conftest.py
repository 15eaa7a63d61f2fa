"""A model's grammars, as those of formats have them."""

from tests.grammar.conftest import grammars as grammars
from tests.grammar.conftest import tokenizer as tokenizer
