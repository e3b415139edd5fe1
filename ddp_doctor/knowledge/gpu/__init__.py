"""What the driver says of GPUs, and what they may be asked for."""
