"""The rules on the user's own model."""
