"""Tables about GPUs: what drivers report, how fast GPUs are, and how much memory a check may use."""
