"""Inside the process of a rank: how it begins and ends, the context of its probes, and the private calls of torch."""
