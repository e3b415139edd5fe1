"""user_model: the user's own model on all ranks; what other parts of the feature share is here, too."""
