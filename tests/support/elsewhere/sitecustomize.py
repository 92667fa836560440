"""Put this folder on PYTHONPATH, and every Python process lacks what Windows lacks: fcntl, fork,
POSIX signals.

With ASKEW_TEST_SPAWN_ONLY, processes can only be spawned, and all else is there.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context as contexts
import os
import signal
import sys

if not os.environ.get("ASKEW_TEST_SPAWN_ONLY"):
    for module in ("fcntl", "grp", "pwd", "resource", "termios"):
        sys.modules[module] = None  # type: ignore[assignment]

    for name in ("fork", "forkpty", "posix_fallocate", "sched_getaffinity", "setsid", "killpg"):
        if hasattr(os, name):
            delattr(os, name)

    _WINDOWS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
    for name in dir(signal):
        posix = name.startswith("SIG") and name[3:].isalpha() and name not in _WINDOWS
        if posix or name in (
            "pthread_sigmask",
            "pthread_kill",
            "sigwait",
            "alarm",
            "setitimer",
            "pause",
        ):
            delattr(signal, name)

for method in ("fork", "forkserver"):
    contexts._concrete_contexts.pop(method, None)
contexts._default_context._default_context = contexts._concrete_contexts["spawn"]
multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[method-assign]
