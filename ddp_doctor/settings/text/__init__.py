"""Settings in text files."""
