"""user_model: tests of the user's own model on all ranks, and the parts of it that compile and fit also use."""
