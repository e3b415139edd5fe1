"""Profilers' traces: a stream of bytes to events, and events to what is kept of a rank."""
