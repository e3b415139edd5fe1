"""Whether ranks exchange data rightly and fast."""
