"""Killed ranks: the others end with an error, nothing is left, and torchrun resumes the run."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("fragile_run.py")
TIMEOUT = 5.0  # Of the group, in seconds
GRACE = 5.0  # What a survivor may take longer


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start(folder, world, *arguments):
    port = str(free_port())
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, str(RUN), "--folder", str(folder), *arguments],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for rank in range(world)
    ]


def segments():
    return {name for name in os.listdir("/dev/shm") if "neuron" in name}


def in_session(session):
    """Processes of a session; survivors have no children left."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                found.append(entry.name)
    return found


def check_survivors(processes, folder, clean_exit_allowed=False):
    """The others of rank 1, once it is dead, end in time and say why."""
    try:
        processes[1].communicate(timeout=100)
        assert processes[1].returncode == -9 and (folder / "killed").exists()
        dead = time.monotonic()
        for rank, process in enumerate(processes):
            if rank == 1:
                continue
            output, _ = process.communicate(timeout=TIMEOUT + GRACE)
            print(f"rank {rank}: {time.monotonic() - dead:.1f} s after the death")
            if clean_exit_allowed and process.returncode == 0:
                continue
            assert process.returncode == 1, (process.returncode, output)
            error = output.strip().splitlines()[-1]
            assert "Error" in error or "Error" in output, output
            assert "rank 1" in output or "rank(s) 1" in output or "timed out" in output, output
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not [entry for p in processes for entry in in_session(p.pid)]


@pytest.mark.parametrize(
    ("parallel", "point"), [("ddp", "backward"), ("fsdp2", "optimizer"), ("fsdp2", "checkpoint")]
)
def test_killed_rank_ends_the_others(tmp_path, parallel, point):
    before = segments()
    processes = start(
        tmp_path, 2, "--parallel", parallel, "--point", point, "--timeout", str(TIMEOUT)
    )
    check_survivors(processes, tmp_path)
    assert segments() <= before


def losses(folder, rank):
    found = {}
    for line in (folder / f"losses{rank}").read_text().splitlines():
        step, loss = json.loads(line)
        found.setdefault(step, []).append(loss)
    return found


def launch(folder, *arguments):
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--max-restarts=1", f"--master-port={free_port()}", "--monitor-interval=0.2"),
            *(str(RUN), "--folder", str(folder), *arguments),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_torchrun_resumes_from_the_checkpoint(tmp_path):
    folders = tmp_path / "killed", tmp_path / "whole"
    for folder in folders:
        folder.mkdir()
    runs = launch(folders[0], "--point", "backward", "--step", "2"), launch(folders[1])
    for run in runs:
        assert run.returncode == 0, run.stdout + run.stderr
    assert (folders[0] / "killed").exists() and not (folders[1] / "killed").exists()
    for rank in range(2):
        killed, whole = (losses(folder, rank) for folder in folders)
        assert sorted(whole) == sorted(killed) == [0, 1, 2, 3]
        for step, (loss,) in whole.items():
            assert set(killed[step]) == {loss}, (step, killed, whole)
