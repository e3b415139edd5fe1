"""The ranks of a node: the forkserver, the workers, their trials and the evidence of what they did."""
