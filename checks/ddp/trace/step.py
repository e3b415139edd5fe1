"""DDT120 to DDT149: what would make the step faster, with the most that it can bring."""
