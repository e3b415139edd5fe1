"""Checks that ranks exchange data correctly and fast."""
