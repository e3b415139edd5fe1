"""What several probes do through a Context or a RankContext, which is their only way to the machine."""
