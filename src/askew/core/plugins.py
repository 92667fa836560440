"""Code that is not askew's: entry points of installed packages, Python files, and the hash that
stands for either.

A package adds methods, benchmarks or trackers by entry points of the groups `askew.methods`,
`askew.benchmarks` and `askew.trackers`; docs/plugins.md has an example.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from askew.core.errors import UserError


@functools.cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer to a group, by name; nothing of it is imported yet."""
    return {
        entry.name: entry
        for entry in sorted(entry_points(group=group), key=lambda entry: entry.value)
    }


@functools.cache
def load_plugin(group: str, name: str) -> Any:
    """The object behind a name; UserError if its package fails to import."""
    entry = plugins(group)[name]
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.value
        raise UserError(
            f"The plug-in {name} of the package {package} cannot be loaded: {error}.",
            f"mend or remove the package: pip uninstall {package}.",
        ) from error


@functools.cache
def loaded_plugins(group: str) -> dict[str, Any]:
    """All of a group that can be loaded; a warning names each of the others."""
    found = {}
    for name in plugins(group):
        try:
            found[name] = load_plugin(group, name)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
    return found


def load_function(name: str) -> Callable[..., Any]:
    """The function behind a dotted name, `module:function`; UserError if there is none."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"The function {name} cannot be loaded: {error}.",
            "it is named module:function, and its module can be imported.",
        ) from error
    if not callable(found):
        raise UserError(f"{name} is not a function.", "it is named module:function.")
    loaded: Callable[..., Any] = found
    return loaded


FROM_FILE = "askew_file_"
"""How the module of a file is called, before the file's hash."""


def load_file(file: str | Path, kind: str, example: str) -> ModuleType:
    """A Python file as a module, run once for each content; `example` tells how such a file is
    named."""
    path = Path(file)
    if not path.is_file():
        raise UserError(f"The {kind} file {path} does not exist.", example)
    return _loaded(path, content_hash([path.read_bytes()]))


@functools.cache
def _loaded(path: Path, digest: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{FROM_FILE}{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and inspect look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise UserError(
            f"{path} cannot be loaded: {error}.", "run it with python to see where it fails."
        ) from error
    return module


def content_hash(parts: Iterable[bytes]) -> str:
    """Twelve hex digits for some bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:12]


def source_of(cls: type) -> bytes:
    """A class's code: its text, or its compiled functions where there is no text, as in `python
    -`."""
    try:
        return inspect.getsource(cls).encode()
    except (OSError, TypeError):
        compiled = {n: f.__code__ for n, f in vars(cls).items() if inspect.isfunction(f)}
        return repr(
            [(n, c.co_code, c.co_consts, c.co_names) for n, c in sorted(compiled.items())]
        ).encode()
