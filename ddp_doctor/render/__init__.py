"""Reports for people and programs; the terminal renderer is the only user of rich."""
