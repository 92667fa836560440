"""What a network of the user's own is made of: its code, attributes, weights and outputs."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askew.core.plugins import source_of

_SHAPES = ((3, 32, 32), (1, 28, 28), (3, 224, 224), (8,), (64,), (512,))
"""Shapes of inputs that are tried in turn to compare outputs."""
_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has; those that matter are hashed otherwise."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
_DEEPEST = 8


def identity(module: nn.Module) -> Iterator[bytes]:
    """Give its structure, code, attributes and weights as bytes, the same in every process.

    Code is the source of all classes that are not torch's and the files that hold it.
    """
    yield from earlier_identity(module)
    classes = {type(m) for m in module.modules() if not type(m).__module__.startswith("torch.")}
    yield from sorted({_file_of(cls) for cls in classes})
    for name, part in module.named_modules():
        yield f"\0{name}\0".encode()
        known = {n: v for n, v in vars(part).items() if n not in _OF_TORCH}
        yield from _value(known, 0, frozenset())
        for hooks in _HOOKS:
            yield from _value(list(getattr(part, hooks).values()), 0, frozenset())


def earlier_identity(module: nn.Module) -> Iterator[bytes]:
    """Give its structure, the source of its classes and its weights, as saved models name it."""
    yield repr(module).encode()
    classes = {type(m) for m in module.modules() if not type(m).__module__.startswith("torch.")}
    yield from (source_of(cls) for cls in sorted(classes, key=lambda cls: cls.__qualname__))
    for name, value in module.state_dict().items():
        yield f"{name} {value.dtype} {tuple(value.shape)}".encode()
        yield _bytes_of(value)


def same_outputs(one: nn.Module, other: nn.Module) -> bool:
    """Tell whether two modules give the same for a fixed batch, or take none that is tried."""
    for shape in _SHAPES:
        first = _outputs(one, shape)
        if first is not None:
            second = _outputs(other, shape)
            return second is not None and close(first, second)
    return True


def close(one: Tensor, other: Tensor) -> bool:
    """Tell whether outputs are the same but for rounding, which depends on the machine."""
    return one.shape == other.shape and torch.allclose(
        one.float(), other.float(), rtol=1e-3, atol=1e-4, equal_nan=True
    )


def fixed_batch(shape: tuple[int, ...], n: int = 2) -> Tensor:
    """A batch of numbers from 0 to 1 that never changes. (n, *shape)"""
    size = n * int(np.prod(shape))
    return (torch.arange(size, dtype=torch.float64) * 0.6180339887 % 1).float().reshape(n, *shape)


def _outputs(module: nn.Module, shape: tuple[int, ...]) -> Tensor | None:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        try:
            found = copy.deepcopy(module).cpu().eval()(fixed_batch(shape))
        except Exception:  # a stranger's code refuses in its own way
            return None
    return found if isinstance(found, Tensor) else None


# --- values ---


def _file_of(cls: type) -> bytes:
    """The content of the file that defines a class; empty where there is none."""
    try:
        return Path(inspect.getfile(cls)).read_bytes()
    except (OSError, TypeError):
        return b""


def _bytes_of(value: Tensor) -> bytes:
    plain = value.detach().cpu().contiguous().flatten()
    return bytes(plain.view(torch.uint8).numpy().tobytes()) if plain.numel() else b""


def _value(value: Any, depth: int, seen: frozenset[int]) -> Iterator[bytes]:
    """Give anything as bytes that are the same in every process, so without addresses."""
    yield f"<{type(value).__module__}.{type(value).__qualname__}>".encode()
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif id(value) not in seen and depth <= _DEEPEST:
        parts = _leaf(value)
        yield from _parts(value, depth + 1, seen | {id(value)}) if parts is None else parts


def _leaf(value: Any) -> list[bytes] | None:
    """Numbers, and what has a name; None for all else."""
    if isinstance(value, Tensor):
        return [f"{value.dtype} {tuple(value.shape)}".encode(), _bytes_of(value)]
    if isinstance(value, np.ndarray | np.generic):
        content = np.ascontiguousarray(value).tobytes() if value.dtype != object else b""
        return [f"{value.dtype} {value.shape}".encode(), content]
    if isinstance(value, torch.dtype | torch.device):
        return [repr(value).encode()]
    if isinstance(value, nn.Module):  # those that torch knows are hashed by themselves
        return [*earlier_identity(value)]
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        own = isinstance(value, type) and not _installed(value.__module__)
        name = f"{getattr(value, '__module__', '')}.{value.__name__}".encode()
        return [name, source_of(value) if own else b""]  # type: ignore[arg-type]
    return None


def _parts(value: Any, depth: int, seen: frozenset[int]) -> Iterator[bytes]:
    """What holds other values."""
    parts: Any
    if isinstance(value, types.FunctionType):
        yield from _function(value, depth, seen)
        return
    if isinstance(value, set | frozenset):
        yield from sorted(b"".join(_value(one, depth, seen)) for one in value)
        return
    if isinstance(value, Mapping):
        parts = [part for item in value.items() for part in item]
    elif isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__, value.__self__]
    else:
        slots = getattr(type(value), "__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        parts = [dict(getattr(value, "__dict__", {})), *(getattr(value, n, None) for n in names)]
    for one in parts:
        yield from _value(one, depth, seen)


def _function(function: types.FunctionType, depth: int, seen: frozenset[int]) -> Iterator[bytes]:
    """A function's code, its defaults, what it encloses, and the globals that it names."""
    yield f"{function.__module__}.{function.__qualname__}".encode()
    if _installed(function.__module__):
        return
    code = function.__code__
    try:
        yield inspect.getsource(function).encode()
    except (OSError, TypeError):
        yield code.co_code + repr([c for c in code.co_consts if isinstance(c, _PLAIN)]).encode()
    cells = [_content(cell) for cell in function.__closure__ or ()]
    known = {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
    given = [function.__defaults__, function.__kwdefaults__, cells, known]
    yield from _value(given, depth, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def _installed(module: str | None) -> bool:
    """Whether code is of a package whose names say enough."""
    return (module or "").partition(".")[0] in ("torch", "torchvision", "timm", "numpy", "builtins")
