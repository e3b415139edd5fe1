"""Settings: the environment variables of NCCL, torch, gloo and torchrun; one table, and what follows from it."""
