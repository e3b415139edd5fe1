"""The agents of several nodes around one store: roll call, messages, orders, lost nodes."""
