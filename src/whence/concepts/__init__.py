"""Concepts inside a model: sets of examples, the directions that probes find in states, what a target makes of them."""
