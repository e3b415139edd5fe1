"""``ddp-doctor watch -- CMD``: a black box beside a job.

It is a package of its own, because it stays small for as long as the job runs: what judges is imported in a child of
its own, when there is something to judge.
"""
