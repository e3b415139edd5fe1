"""The report as one page, for readers who did not see the run; it needs neither the network nor scripts."""
