"""Checks that the nodes find, match and reach one another."""
