"""Real jobs below each launcher, with a fault in rank 1: what attach, watch and logs say of them (`make launchers`)."""
