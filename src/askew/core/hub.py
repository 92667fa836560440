"""The Hugging Face Hub: names of repositories, and what goes wrong there, as errors that a user can
correct.

The address is HF_ENDPOINT, read at every call; the token is huggingface_hub's own (HF_TOKEN, or `hf
auth login`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from askew.core.errors import UserError

ENDPOINT = "https://huggingface.co"
_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(
    rf"hf:/{{1,2}}({_NAME})(?:@([\w.-]+))?"
)  # as a path, hf://a/b has lost one of its slashes


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/")


def on_hub(path: Path | str) -> bool:
    """Whether a path is an address of the Hub: hf://owner/name, or hf://owner/name@revision."""
    return str(path).startswith("hf:/")


def repository(name: str) -> str:
    """A repository's name, owner/name."""
    if not re.fullmatch(_NAME, name):
        raise UserError(f"'{name}' is not the name of a repository.", "it is written owner/name.")
    return name


def snapshot(address: str, patterns: list[str]) -> Path:
    """The files of a model's repository that fit the patterns, in the Hub's own cache."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UserError(
            f"{address} is no address of the Hub.", "hf://owner/name, or hf://owner/name@revision."
        )
    return download(found[1], "model", patterns, found[2])


def download(name: str, kind: str, patterns: list[str], revision: str | None = None) -> Path:
    """The files of a repository that fit the patterns; one that is there already is not fetched
    again."""
    needed()
    from huggingface_hub import snapshot_download

    with reported(name):
        return Path(
            snapshot_download(
                name,
                repo_type=kind,
                revision=revision,
                allow_patterns=patterns,
                endpoint=endpoint(),
                library_name="askew",
            )
        )


def push(name: str, files: dict[str, bytes], message: str, *, public: bool, replaces: str) -> str:
    """Put files into a model's repository in one commit, without the older ones that fit the
    pattern `replaces`.

    The repository, whose address is returned, is made if need be: private unless it is to be
    `public`.
    """
    needed()
    from fnmatch import fnmatch

    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(endpoint=endpoint(), library_name="askew")
    with reported(name):
        made = api.create_repo(name, private=not public, exist_ok=True)
        there = api.list_repo_files(name)
        operations: list[Any] = [
            CommitOperationAdd(path, content) for path, content in files.items()
        ]
        operations += [
            CommitOperationDelete(path)
            for path in there
            if path not in files and fnmatch(path, replaces)
        ]
        api.create_commit(name, operations, commit_message=message)
    return str(made)


def needed() -> None:
    """UserError where huggingface_hub is not installed."""
    if find_spec("huggingface_hub") is None:
        raise UserError("The Hub needs huggingface_hub.", "pip install 'askew[hub]'")


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Errors of the Hub, of its client and of the connection, as one sentence."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{endpoint()} shows no repository {name}.",
            "is it spelt right? If it is private: `hf auth login`.",
        ) from None
    except errors.LocalTokenNotFoundError:
        raise UserError(
            "There is no token of the Hub on this machine.", "hf auth login, or set HF_TOKEN."
        ) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "")
        hint = "hf auth login, or set HF_TOKEN." if status in (401, 403) else "try again later."
        raise UserError(
            f"{endpoint()} refused {name}: {str(error).splitlines()[0]}.", hint
        ) from None
    except (errors.LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{endpoint()} cannot be reached, and {name} is not in the cache "
            f"({type(error).__name__}).",
            "check the connection, or HF_ENDPOINT.",
        ) from None
    except (
        Exception
    ) as error:  # the client's HTTP library has changed between versions, and so have its errors
        if "http" not in type(error).__module__ and "uploading" not in str(error):
            raise
        raise UserError(
            f"{endpoint()} cannot be reached: {error}.", "check the connection, or HF_ENDPOINT."
        ) from None
