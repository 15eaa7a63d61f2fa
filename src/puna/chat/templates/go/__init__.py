"""The part of Go's text/template language that chat templates use: lexer, parser, evaluator."""

from puna.chat.templates.go.evaluator import GoTemplate

__all__ = ["GoTemplate"]
