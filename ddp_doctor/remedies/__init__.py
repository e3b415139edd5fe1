"""Fixes: the kinds of fixes, and the fixes that several checks offer."""
