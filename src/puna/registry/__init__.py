"""Transfers of models between registries and the store."""
