"""compile: what torch.compile makes of the user's own model."""
