"""How findings speak: ranks, nodes, GPUs and settings in words, and remedies that several rules share."""
