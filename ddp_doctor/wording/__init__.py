"""How findings name nodes, ranks, GPUs, links and the lines of logs, in words and as culprits."""
