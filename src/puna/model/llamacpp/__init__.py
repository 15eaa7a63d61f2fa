"""Models computed by llama.cpp for Puna's engine: `puna.model.base.RunnableModel` on llama-cpp-python.

Everything above a forward pass stays Puna's: scheduling, prefixes, sampling, text. llama.cpp has the weights,
caches and arithmetic.
"""
