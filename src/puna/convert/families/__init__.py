"""Families of models: a table each."""
