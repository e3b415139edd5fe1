"""Profiler traces: the parser of events, and the data that is kept of a rank."""
