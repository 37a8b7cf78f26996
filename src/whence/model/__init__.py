"""The only floor that touches a model."""
