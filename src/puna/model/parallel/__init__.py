"""Tensor parallelism: several processes, each with a device of its own, compute a part of each layer.

The first process, rank 0, runs the engine and has a `model.ParallelModel`. It starts the others (`ranks`) and
tells them what to do, which a `worker.RankWorker` does there; rank 0 alone draws tokens. Within the layers,
they exchange results by `puna.ops.collectives`.
"""
