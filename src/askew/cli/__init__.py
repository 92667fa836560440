"""The command line: parse, call, print. Results go to stdout, notes and errors to stderr.

torch takes seconds to import, so each command imports what it needs when it is called.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from askew import __version__
from askew.cli import adapt, audit, data, look, predict, report, status, train
from askew.cli.common import app, check_arguments
from askew.cli.terminal import discard, open_output, output_error, print_note
from askew.core.errors import EmptyClassWarning, UserError, from_os_error, warn_plainly

__all__ = ["adapt", "app", "audit", "data", "look", "main", "predict", "report", "status", "train"]


def _versions(asked: bool) -> None:
    if asked:
        import platform  # here, because these two take 40 ms to import
        from importlib.metadata import version

        print(f"askew {__version__}, torch {version('torch')}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def _options(
    versions: Annotated[
        bool,
        typer.Option(
            "--version", callback=_versions, is_eager=True, help="Show versions and exit."
        ),
    ] = False,
) -> None:
    """Options before the name of a command."""


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence, a hint, and exit code 2."""
    warn_plainly()
    warnings.simplefilter("error", EmptyClassWarning)
    try:
        open_output()
        check_arguments(sys.argv[1:])
        code = _run()  # Typer turns Ctrl-C into 130, or into Abort, depending on its version
        if code == 130:
            raise KeyboardInterrupt
        sys.stdout.flush()  # what cannot be written is an error here, and not after the end
        sys.exit(code)
    except UserError as error:
        _fail(error)
    except EmptyClassWarning as error:
        _fail(UserError(str(error), "add images of it, or leave it out of the classes."))
    except OSError as error:
        _fail(output_error(error) or from_os_error(error))
    except MemoryError:
        _fail(
            UserError(
                "There is not enough memory.",
                "use fewer --jobs, a smaller batch, or less data at a time.",
            )
        )
    except (KeyboardInterrupt, typer.Abort):
        print_note("Stopped. Start the same command again to continue from the last checkpoint.")
        sys.exit(130)
    except Exception as error:
        # Typer's own usage errors (its classes moved between versions) carry an exit code and a
        # message.
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):
            if not error.format_message():  # no arguments: the help was shown
                sys.exit(error.exit_code)
            hint = "`askew --help` or `askew COMMAND --help` lists what there is."
            sentence = " ".join(error.format_message().split())
            _fail(UserError(sentence if sentence.endswith((".", "?")) else f"{sentence}.", hint))
        raise


def _run() -> int | None:
    """Run the command; its exit code."""
    try:
        code: int | None = app(standalone_mode=False)
    except SystemExit as ended:
        # Click and rich end with 1 where a reader, such as `head`, has seen enough.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        discard(sys.stdout)
        return 0
    return code


def _fail(error: UserError) -> None:
    print_note(str(error))
    sys.exit(2)
