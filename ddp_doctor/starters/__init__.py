"""Detect the launcher of this process and its node, and start agents on other nodes."""
