"""What DDP averages, and how the doctor recognizes it: gradients, manifests, buckets, payloads."""
