"""Checks of the correctness and speed of training with DDP."""
