"""The launches in a job script or a manifest: nodes, number of starts, and arguments."""
