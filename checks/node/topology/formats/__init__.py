"""Parsers of topologies as nvidia-smi, rocm-smi, NCCL and the kernel print them."""
