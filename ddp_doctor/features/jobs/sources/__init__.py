"""What running jobs and their processes do, read from the machine."""
