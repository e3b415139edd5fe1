"""model: the user's own model; ``fit`` estimates the memory that it needs."""
