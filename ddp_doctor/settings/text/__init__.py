"""Settings in a text that somebody wrote or saved."""
