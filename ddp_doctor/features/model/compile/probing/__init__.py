"""How torch.compile takes the user's model on a rank."""
