"""The code in the process of a rank: its start and end, the context of its probes, and private calls of torch."""
