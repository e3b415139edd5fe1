"""Measurements that several probes share, made through a Context or a RankContext, their only access to the machine."""
