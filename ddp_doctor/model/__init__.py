"""The core types: facts, readings, recordings, checks, rules, findings and reports. No I/O, no torch."""
