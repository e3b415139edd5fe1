"""Checks that the nodes find one another, match, and can connect."""
