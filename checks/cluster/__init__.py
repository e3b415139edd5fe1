"""Whether the nodes find, match and reach one another."""
