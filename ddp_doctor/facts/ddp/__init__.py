"""What checks of DDP record."""
