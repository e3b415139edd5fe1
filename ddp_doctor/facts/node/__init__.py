"""Facts of the checks of one node."""
