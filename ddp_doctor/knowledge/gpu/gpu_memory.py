"""How much of a GPU's memory the doctor may take: a GPU may be busy with somebody's work."""

MIB = 1024**2

#: Of the free memory; a program beside the doctor must find room when it asks for more.
SHARE_OF_FREE = 0.10
MOST_BYTES = 1024 * MIB
#: What a rank's checks cannot do without: the exchange of 64 MiB between a pair holds four such tensors.
LEAST_BYTES = 384 * MIB


def allowance(free_bytes: int) -> int:
    """Bytes of tensors that a rank may hold on a GPU with so much free memory, never more than half of it.

    What CUDA itself and NCCL take is not counted: some 0.5 GiB a process, which no setting changes.
    """
    wanted = min(max(int(SHARE_OF_FREE * free_bytes), LEAST_BYTES), MOST_BYTES)
    return min(wanted, free_bytes // 2)
