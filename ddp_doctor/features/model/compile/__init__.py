"""compile: the behavior of the user's own model under torch.compile."""
