"""The code that runs a node's part of a run: its agent, its session, the head's decisions."""
