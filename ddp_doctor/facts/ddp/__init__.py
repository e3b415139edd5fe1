"""Facts of the DDP checks."""
