"""What DDP averages, and how the doctor recognises it: gradients, manifests, buckets, payloads."""
