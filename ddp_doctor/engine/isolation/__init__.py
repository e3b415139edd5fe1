"""Which nodes to blame: groups of nodes are tested by themselves, ever smaller ones."""
