"""Streaming parsers of the markup that models put around thinking and tool calls."""
