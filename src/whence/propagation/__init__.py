"""What is carried through a model beside its values: parts of states, backward rules, relevance."""
