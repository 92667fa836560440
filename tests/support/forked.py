"""Child processes that fork from a server which has imported torch already: each starts in a
hundredth of a second."""

from __future__ import annotations

import multiprocessing

forks = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
forks.set_forkserver_preload(
    [
        "askew.runs.launch.local",
        "askew.methods",
        "askew.data.benchmarks.mini",
        "pytest",
        "safetensors.torch",
        "scipy.optimize",  # which a run imports when it is scored
    ]
)
