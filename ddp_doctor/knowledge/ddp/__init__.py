"""DDP's averaging of gradients, and how ddp-doctor checks it: gradients, manifests, buckets, payloads."""
