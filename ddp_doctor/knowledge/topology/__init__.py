"""The links between GPUs and NICs: their codes, their rates, the paths that NCCL takes."""
