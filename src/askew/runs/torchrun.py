"""What every process but the first does when torchrun trains one network on several of them."""

from __future__ import annotations

import functools
import sys
import warnings

import torch

from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.runs.config import Planned, RunRequest, prepare
from askew.training.distributed import Team, serve
from askew.training.run import Run


def serve_run(team: Team, request: RunRequest) -> None:
    """Serve the first process with the run that was asked for; only the first one prints
    warnings."""

    @functools.cache
    def planned() -> Planned:
        return prepare(request)

    def find(key: str) -> tuple[Run, TrainingData]:
        stages = planned().run
        torch.set_num_threads(stages.threads)
        while stages.key != key:
            if stages.before is None:
                raise UserError(
                    f"Process {team.rank} has other data than the first.",
                    "every machine needs the same files.",
                )
            stages = stages.before
        return stages, planned().task.training_data

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            serve(team, find)
        except KeyboardInterrupt:
            sys.exit(130)
