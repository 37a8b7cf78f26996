"""The documentation site: `python -m website` makes pages of the registry, runs the notebooks and builds `out/site`."""
