"""Processes: the agent of a node, the workers of its ranks, and who among them is stuck."""
