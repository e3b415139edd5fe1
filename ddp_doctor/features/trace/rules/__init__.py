"""The rules of ``trace``: late ranks, communication, and the rest of the step."""
