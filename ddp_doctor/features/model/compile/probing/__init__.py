"""Probes of the user's model under torch.compile on a rank."""
