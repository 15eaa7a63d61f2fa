"""Layers of vision towers.

A tower reads far more patches than a step has rows, so its layers process them in slices and yield after
each one, so that the engine can continue other requests in between.
"""
