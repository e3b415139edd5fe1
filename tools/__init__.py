"""What maintainers run: set-up, generated pages, the gate of continuous integration. Not shipped in wheels."""
