"""The runners: which models are in memory, loading them, watching them, ending them."""
