"""The runners of models in memory: loading, watching and ending them."""
