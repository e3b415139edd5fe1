"""What is wrong with a request."""


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one sentence with what to do."""
