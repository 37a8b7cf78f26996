"""How results look as web pages: what the templates are given, a module per type of result."""
