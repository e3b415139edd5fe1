"""Ranks under the real torchrun: starting it, what it runs, and ending it."""
