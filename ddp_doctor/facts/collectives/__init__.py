"""What checks of collectives record."""
