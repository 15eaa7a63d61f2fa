"""Which texts a Jinja template writes around a message's tool calls."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from puna.markup.family import tags_around
from puna.markup.parts import Tags
from puna.prompt.jinja import JinjaTemplate


def call_tags(template: JinjaTemplate) -> Tags:
    """The tags of the first block that is there for a message's `tool_calls`."""
    waiting: list[nodes.Node] = [template.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.If) and _mentions_calls(node.test):
            return tags_around(_written(node.body))
        if isinstance(node, nodes.For) and _mentions_calls(node.iter):
            return tags_around(_written(node.body))
        waiting += reversed([*node.iter_child_nodes()])
    return Tags("", "")


def _mentions_calls(node: nodes.Node) -> bool:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Getattr) and node.attr == "tool_calls":
            return True
        if isinstance(node, nodes.Const) and node.value == "tool_calls":
            return True
        if isinstance(node, nodes.Not):
            continue
        waiting += node.iter_child_nodes()
    return False


def _written(body: list[nodes.Node]) -> Iterator[str]:
    """The texts that are written, whatever they depend on, in their order."""
    waiting = body[::-1]
    while waiting:
        node = waiting.pop()
        match node:
            case nodes.TemplateData(data=text) | nodes.Const(value=str(text)):
                yield text
            case nodes.Output() | nodes.Concat() | nodes.Add() | nodes.For() | nodes.If():
                children = node.iter_child_nodes(exclude=("test", "iter", "target"))
                waiting += reversed([*children])
