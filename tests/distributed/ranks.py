"""Runs test bodies on several ranks: a pool of processes that live as long as the session.

``run(body, world)`` calls ``body(rank, world, *arguments)`` on ranks 0 .. world-1, each in its own
process with a fresh default group, and returns the results by rank. Bodies are functions of a
module. A rank that raises makes ``run`` raise with the tracebacks of all; a rank that dies or
hangs costs the pool, and the next call starts another.
"""

import atexit
import contextlib
import datetime
import os
import queue
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 100.0  # Seconds; the first call loads torch in each process
MOST = 8  # Ranks; every process sees as many cores


def _serve(index, port, tasks, results):
    os.environ["LOCAL_RANK"] = str(index)
    os.environ["LOCAL_WORLD_SIZE"] = str(MOST)
    torch.set_num_threads(1)
    while True:
        task = tasks.get()
        if task is None:
            return
        number, body, world, arguments, options = task
        try:
            os.environ.update(options.get("environment", {}))
            store = dist.TCPStore(
                "127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=30)
            )
            store = dist.PrefixStore(f"task{number}", store)
            if options.get("group", True):
                dist.init_process_group(
                    options.get("backend", "neuron"),
                    store=store,
                    rank=index,
                    world_size=world,
                    timeout=datetime.timedelta(seconds=options.get("timeout", 30)),
                )
            else:
                arguments = (store, *arguments)
            outcome = body(index, world, *arguments)
            results.put((index, True, outcome))
        except BaseException:
            results.put((index, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                with contextlib.suppress(Exception):
                    dist.destroy_process_group()
            for name in options.get("environment", {}):
                os.environ.pop(name, None)


class Pool:
    def __init__(self):
        self.context = mp.get_context("spawn")
        self.results = self.context.Queue()
        self.processes = []
        self.tasks = []
        self.count = 0
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def grow(self, world):
        while len(self.processes) < world:
            tasks = self.context.SimpleQueue()
            process = self.context.Process(
                target=_serve,
                args=(len(self.processes), self.store.port, tasks, self.results),
                daemon=True,
            )
            process.start()
            self.processes.append(process)
            self.tasks.append(tasks)

    def run(self, body, world, arguments, options):
        self.grow(world)
        self.count += 1
        for rank in range(world):
            self.tasks[rank].put((self.count, body, world, arguments, options))
        outcomes, failures = {}, {}
        limit = options.get("limit", LIMIT)
        while len(outcomes) + len(failures) < world:
            try:
                rank, fine, outcome = self.results.get(timeout=limit)
            except queue.Empty:
                absent = [r for r in range(world) if r not in outcomes and r not in failures]
                self.stop()
                raise TimeoutError(
                    f"ranks {absent} gave no answer for {limit} s; others: {failures}"
                ) from None
            (outcomes if fine else failures)[rank] = outcome
        if failures:
            raise AssertionError("\n".join(f"rank {r}:\n{failures[r]}" for r in sorted(failures)))
        return [outcomes[rank] for rank in range(world)]

    def stop(self):
        global _pool
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        _pool = None


_pool = None


def run(body, world=2, *arguments, **options):
    """Results of ``body(rank, world, *arguments)`` by rank.

    Options: ``environment``, ``timeout`` of the group, ``limit`` of the whole call, ``backend``,
    ``group=False`` (no default group; the body gets a store instead).
    """
    global _pool
    if _pool is None:
        _pool = Pool()
        atexit.register(stop)
    return _pool.run(body, world, arguments, options)


def stop():
    if _pool is not None:
        _pool.stop()
