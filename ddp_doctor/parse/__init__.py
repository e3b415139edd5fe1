"""Pure functions from text to facts. Each docstring shows a sample of the input."""
