"""Remedies: the kinds of remedies, and those that several checks offer."""
