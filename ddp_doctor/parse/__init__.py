"""Text to facts: pure functions; each docstring shows a sample of what it reads."""
