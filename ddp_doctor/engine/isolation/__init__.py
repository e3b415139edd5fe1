"""Find bad nodes by testing smaller and smaller groups of nodes."""
