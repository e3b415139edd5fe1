"""jobs: why a job failed (``logs``), hangs (``attach``) or became slow (``watch``), each command in a package.

They share what is read (sources/, reading/, facts.py), what follows (views/, causes/), and known causes (table/).
"""
