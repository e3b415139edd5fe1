"""jobs: why a job failed (``logs``), hangs (``attach``) or became slow (``watch``), each command in a package."""
