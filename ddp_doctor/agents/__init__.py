"""The agents of several nodes around one store: node check-in, messages, orders, lost nodes."""
