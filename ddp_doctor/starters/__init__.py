"""Who started this process, where it stands, and starting agents on other nodes."""
