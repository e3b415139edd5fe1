"""The report as one page: for a person who was not there, without the network and without a script."""
