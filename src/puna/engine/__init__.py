"""The engine: sequences of requests, scheduled into batches, executed, and updated with what came out.

Start reading at `engine.Engine.step`. No thread runs beside the kernels: what the engine does between two
passes is 3 to 5 % of a step of a small model, and overlapping it would cost more than it wins.
"""
