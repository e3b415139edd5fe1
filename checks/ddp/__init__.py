"""Whether training with DDP is right and fast."""
