"""The checks of one node: its settings, software, GPUs and network devices."""
