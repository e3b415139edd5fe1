"""ddp-doctor: will a DistributedDataParallel job start, be right and be fast on these nodes?"""

__version__ = "0.1.0"
