"""What one node is like: its settings, software, GPUs and network devices."""
