"""Fixtures of grammars, shared with the tests of formats."""

from tests.grammar.conftest import grammars as grammars
from tests.grammar.conftest import tokenizer as tokenizer
