"""Rendering of chat templates within limits, in a process of its own for each loaded model."""
