"""What probes do with the user's own model: load it, make batches, run and compare its passes."""
