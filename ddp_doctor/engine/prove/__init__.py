"""Test fixes: trials with and without their settings, and what they prove.

experiments.py selects what can be tested, runs it and reads the trials. proofs.py adds the outcome to the findings,
without side effects, live and on replay.
"""
