"""``ddp-doctor lint``: rules over a training script's syntax tree. The script is read, never imported or run.

The rules are listed in rules/__init__.py, each a function from a Script to Spots (rule.py). What a Script knows:
calls in the order in which they run (trace.py), where values come from (values.py), ranks (ranks.py), and libraries
that do the work instead of the script (frameworks.py).
"""
