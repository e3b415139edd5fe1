"""What checks of one node record."""
