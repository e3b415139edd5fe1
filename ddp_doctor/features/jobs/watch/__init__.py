"""``ddp-doctor watch -- CMD``: runs a job, and explains why it hangs, slows down or fails.

It is a separate package so that its process stays small while the job runs: the code that evaluates the job is imported
only when needed, in a child process.
"""
