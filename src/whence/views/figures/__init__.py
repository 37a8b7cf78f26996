"""How results look as matplotlib figures, a module per type of result."""
