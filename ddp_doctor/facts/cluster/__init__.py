"""What checks between nodes record."""
