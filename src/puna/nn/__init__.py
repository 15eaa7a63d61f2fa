"""Modules that models are made of. They declare the names and shapes of their weights (`module`)."""
