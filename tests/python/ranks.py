"""Two processes with a process group of gloo between them, for tests of what happens on several ranks."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

SECONDS = 60  # a rank that takes longer hangs
IMPORTS = [
    "numpy",
    "torch",
    "torch._dynamo",
    "torch._refs.nn.functional",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.testing",
    "memscale",
    "memscale._trace.profiling",
    "pytest",
]
if importlib.util.find_spec("torchvision") is None:  # transformers imports it, which fails in a server that imports
    IMPORTS += ["transformers", "transformers.models.gpt2.modeling_gpt2"]


def _run(function: Callable[..., None], rank: int, folder: Path, args: tuple[Any, ...]) -> None:
    """What one process does. An empty file says that all is well, else it has the traceback."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        limit = datetime.timedelta(seconds=SECONDS / 4)
        dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2, timeout=limit)
        function(folder / str(rank), *args)
        dist.destroy_process_group()
        (folder / f"{rank}.txt").write_text("")
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())


@functools.cache
def _server() -> Any:
    """Makes processes that have imported what ranks need and have run nothing: no rank could use autograd else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    return context


def run_on_two(function: Callable[..., None], folder: Path, *args: Any) -> None:
    """Call ``function(folder of the rank, *args)`` on two ranks. The test fails with what any of them raised."""
    processes = []
    for rank in range(2):
        (folder / str(rank)).mkdir()
        processes.append(_server().Process(target=_run, args=(function, rank, folder, args)))
        processes[-1].start()
    for process in processes:
        process.join(SECONDS)
        process.kill()
        process.join()
    answers = [folder / f"{rank}.txt" for rank in range(2)]
    problems = [path.read_text() if path.exists() else "no answer\n" for path in answers]
    if any(problems):
        pytest.fail("".join(f"rank {rank}: {text}" for rank, text in enumerate(problems)), pytrace=False)
