"""One judge of who waits for whom, and a maker of what it reads for each kind of evidence."""
