"""The causes and culprits of a job's failure, from the evidence in its output and dumps."""
