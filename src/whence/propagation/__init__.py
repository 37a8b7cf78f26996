"""Quantities carried through a model beside its values: parts of states, relevance under backward rules."""
