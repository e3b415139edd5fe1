"""The judge that decides which rank blocks which, and one module per kind of evidence that prepares its input."""
