"""Test a PyTorch distributed job's nodes before it starts, and find out why a job hangs, fails or is slow."""

__version__ = "0.1.0"
