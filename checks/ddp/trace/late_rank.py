"""DDT101 to DDT109: which rank the others wait for, and why."""
