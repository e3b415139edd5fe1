"""Whole machines, healthy and with one fault each, through the real probes of all node checks to the verdict.

A machine is one tree in place of / (the PCI tree with its bridges, RDMA devices, /proc, /dev), the kernel's
log, and the compiled stand-in for libnvidia-ml.
"""
