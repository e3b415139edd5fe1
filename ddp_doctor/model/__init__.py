"""The concept: facts, readings, recordings, checks, rules, findings, reports. No I/O, no torch."""
