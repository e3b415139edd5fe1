"""Facts about the jobs of worlds.py, without torch, which takes two seconds to import."""

RANKS = 3
