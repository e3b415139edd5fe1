"""Ranks under the real torchrun: how they are started, the process that they run, and how they are ended."""
