"""Texts of findings: nodes, ranks, GPUs, links and lines of logs, as text and as culprits."""
