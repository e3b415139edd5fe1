"""How a job script or a manifest starts its ranks: which nodes, how often, and with which arguments."""
