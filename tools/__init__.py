"""Tools for maintainers: setup, generated pages, checks for continuous integration. Not shipped in wheels."""
