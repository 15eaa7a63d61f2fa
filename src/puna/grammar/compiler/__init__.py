"""Processes that compile formats and follow answers in them, within bounds, for one loaded model."""
