"""What the jobs of worlds.py are, without torch, which takes two seconds to import."""

RANKS = 3
