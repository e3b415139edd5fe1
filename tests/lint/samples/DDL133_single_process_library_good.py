"""Names that mean something else: a threading barrier, functools.reduce, a gather of asyncio."""
import asyncio
import functools
import operator
import threading


class Pool:
    def __init__(self, parties):
        self.barrier = threading.Barrier(parties)

    async def run(self, rank, jobs):
        if rank == 0:
            self.barrier.wait()
            return await asyncio.gather(*jobs)
        return functools.reduce(operator.add, jobs)
