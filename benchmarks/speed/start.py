"""From the start of a process to its first training step, and to its end: `askew run`, timed from
outside.

    python benchmarks/speed/start.py [--task mini/syn-uci] [--method coal] [--device auto] [--plain]
    [--repeats 3]

Each repeat is a new process with a folder of runs of its own. The first of them may compile kernels
and draw data, which later ones find in caches. The first step on a GPU includes its capture as a
CUDA graph, unless --plain is given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARKS = ("torch is imported", "training begins", "the first step is done", "the process ends")


def child(began: float, marks: Path, arguments: list[str]) -> None:
    """`askew run`, which notes when it gets how far."""
    times: dict[str, float] = {}
    sys.argv = ["askew", *arguments]

    import torch

    times[MARKS[0]] = time.time() - began
    from askew.cli import main as askew
    from askew.training.loop import Loop

    advance = Loop.advance

    def noted(loop: Loop[object], first: int, steps: int) -> None:
        Loop.advance = advance  # type: ignore[method-assign]
        times[MARKS[1]] = time.time() - began
        loop.advance(first, 1)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times[MARKS[2]] = time.time() - began
        marks.write_text(json.dumps(times))
        if steps > 1:
            loop.advance(first + 1, steps - 1)

    Loop.advance = noted  # type: ignore[method-assign,assignment]
    askew()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="mini/syn-uci")
    parser.add_argument("--method", default="coal")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plain", action="store_true", help="No CUDA graph.")
    parser.add_argument(
        "--steps", type=int, default=100, help="Of pre-training, and of one round after it."
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(float(args.child[0]), Path(args.child[1]), args.child[2:])
        return
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
            marks = Path(scratch) / "marks.json"
            run = [
                "run",
                args.task,
                "-m",
                args.method,
                "--device",
                args.device,
                "--out",
                f"{scratch}/runs",
            ]
            run += [f"-tpretrain={args.steps}", "-trounds=1", f"-tround={args.steps}", "--profile"]
            began = time.time()
            called = [
                sys.executable,
                __file__,
                "--child",
                str(began),
                str(marks),
                *run,
                *["--plain"] * args.plain,
            ]
            done = subprocess.run(called, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            times = {**json.loads(marks.read_text()), MARKS[3]: time.time() - began}
        print("; ".join(f"{name} after {took:.2f} s" for name, took in times.items()), flush=True)
    print(done.stderr.strip())


if __name__ == "__main__":
    main()
