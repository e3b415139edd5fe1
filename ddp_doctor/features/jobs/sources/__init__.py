"""Readers of running jobs and their processes on this machine."""
