"""Find the cause of a trial that hung or failed: the judge of the evidence, and the rules on top of it."""
