"""Layers of vision towers.

A tower reads far more patches than a step has rows, so its layers work through them a slice at a time and
stop after each: between two slices the engine can go on with what others generate.
"""
