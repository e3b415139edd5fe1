"""Values that the commands derive from the facts of a job."""
