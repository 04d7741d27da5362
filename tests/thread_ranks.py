"""Ranks that are threads of one process: what they send is pickled, as between processes, and nothing has to be started."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from ovkgp.inference.statistics.distributed import Ranks


class ThreadRanks(Ranks):
    """One of several threads; `board` is common to them, and each counts its sums."""

    def __init__(self, rank, size, board, barrier):
        super().__init__(rank, size)
        self.board, self.barrier, self.num_sums = board, barrier, 0

    def gather(self, value, activity="gathering"):
        self.board[self.rank] = pickle.dumps(value)
        self.barrier.wait()
        values = [pickle.loads(entry) for entry in self.board]
        self.barrier.wait()
        return values

    def broadcast(self, value, activity="receiving"):
        return self.gather(value)[0]

    def sum(self, tensor, activity="adding"):
        self.num_sums += 1
        return sum(self.gather(tensor))


def on_ranks(size, work):
    """The results of work(ranks) on each rank; an exception is a result too."""
    board, barrier = [None] * size, Barrier(size, timeout=60)

    def run(rank):
        try:
            return work(ThreadRanks(rank, size, board, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
