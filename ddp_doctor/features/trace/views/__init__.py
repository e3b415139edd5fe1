"""What several rules, the table and the page derive from the traces of a job's ranks."""
