"""Caches: what the layers of a model keep of the inputs of each sequence.

`cache.Cache` is the contract, a file is a kind of attention, and docs/kvcache.md has pictures.
"""
