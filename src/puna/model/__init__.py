"""Models: reading their options, building them from files, and predicting their memory.

`models` has a file for each architecture. What several share is in `decoder`, `encoder` and `puna.nn`.
"""
