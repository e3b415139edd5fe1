"""Addresses, interfaces, RDMA ports and the paths between nodes."""
