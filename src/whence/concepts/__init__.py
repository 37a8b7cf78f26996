"""Concepts inside a model: sets of examples, the directions that probes find in states, how targets grow along them."""
