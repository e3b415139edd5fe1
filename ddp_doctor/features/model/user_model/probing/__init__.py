"""Functions that load the user's own model, make its batches, and run and compare its passes."""
