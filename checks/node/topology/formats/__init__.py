"""Text to topology: what nvidia-smi, rocm-smi, NCCL and the kernel print, read."""
