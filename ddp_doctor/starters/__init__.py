"""Who started this process, where it is, and starting agents on other nodes."""
