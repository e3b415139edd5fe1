"""What mends faults: the kinds of remedies, and those that several checks offer."""
