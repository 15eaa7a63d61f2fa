"""One model in several processes, each with consecutive layers; docs/cluster.md says when that is of use.

The first process runs the engine and has a `model.SplitModel`, which passes hidden states on. Each further
one is a `worker.Worker`. All keep the books of the same caches, by the same commands (`wire`).
"""
