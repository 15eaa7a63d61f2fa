"""Syntaxes of tool calls, one file for each idea."""
