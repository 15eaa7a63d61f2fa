"""The part of Go's text/template language that chat templates use: lexer, parser, evaluator."""

from puna.prompt.go import nodes
from puna.prompt.go.evaluator import GoTemplate

__all__ = ["GoTemplate", "nodes"]
