"""Real jobs below each launcher, with a fault in rank 1: the answers of attach, watch and logs (`make launchers`)."""
