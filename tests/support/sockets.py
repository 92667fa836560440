"""Which addresses a process and its descendants listen on, read from /proc."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path

_LISTENING = "0A"


def listening(pid: int) -> dict[str, str]:
    """By address and port: the name of the process, for all sockets of a process and of its
    descendants."""
    owners = {inode: _name(one) for one in _family(pid) for inode in _sockets(one)}
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTENING and columns[9] in owners:
                address, _, port = columns[1].partition(":")
                found[f"{_address(address)} {int(port, 16)}"] = owners[columns[9]]
    return found


def is_loopback(listener: str) -> bool:
    address = ipaddress.ip_address(listener.split()[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel writes an address as words of four bytes, each in the machine's own order."""
    words = bytes.fromhex(digits)
    return ipaddress.ip_address(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))


def _family(pid: int) -> set[int]:
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = str(descriptor.readlink()).partition(":[")
                if kind == "socket":
                    found.add(inode.removesuffix("]"))
    return found


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return str(pid)
