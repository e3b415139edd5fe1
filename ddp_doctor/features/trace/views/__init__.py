"""Values derived from the traces of a job's ranks, shared by the rules, the table and the page."""
