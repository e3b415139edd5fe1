"""Whether ranks exchange data correctly and fast."""
