"""Proving remedies: trials with and without their settings, and what follows from them.

experiments.py picks what can be tried, tries it and reads the trials; proofs.py, pure, puts the outcome on the
findings, live and on replay alike.
"""
