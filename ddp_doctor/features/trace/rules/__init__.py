"""The rules of ``trace``, by what they speak of."""
