"""The judge of which rank blocks which, and a module per kind of evidence that prepares its input."""
