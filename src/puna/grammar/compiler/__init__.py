"""Processes that compile the formats of one loaded model's requests and follow answers, within limits."""
