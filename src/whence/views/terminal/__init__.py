"""How results look in a terminal: rich renderables, a module per type of result."""
