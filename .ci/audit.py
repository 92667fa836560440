"""Ask a database of advisories about every version in constraints.txt.

    python .ci/audit.py

Exit codes: 0, none is known to be weak; 1, these are; 3, the database could not be asked, so
nothing was audited.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

DATABASE = "https://api.osv.dev/v1/querybatch"
"""The Open Source Vulnerabilities database."""
PINS = Path(__file__).parents[1] / "constraints.txt"


def pinned(file: Path) -> list[tuple[str, str]]:
    """Every name and version in a file of constraints."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [
        (name, version) for name, _, version in (line.partition("==") for line in lines if line)
    ]


def advisories(pins: list[tuple[str, str]], database: str) -> list[list[str]]:
    """The advisories on each version, by id; an OSError, ValueError or HTTPException if there is no
    such answer."""
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
        for name, version in pins
    ]
    request = urllib.request.Request(
        database, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        values: Any = json.load(answer)
    try:
        found = [
            [str(advisory["id"]) for advisory in result.get("vulns", [])]
            for result in values["results"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its answer makes no sense") from error
    if len(found) != len(pins):
        raise ValueError(f"it answered {len(found)} of {len(pins)} questions")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Ask a database of advisories about every pinned version."
    )
    parser.add_argument("--database", default=DATABASE, help="address to send the questions to")
    parser.add_argument("--constraints", type=Path, default=PINS, help="file of pinned versions")
    options = parser.parse_args(arguments)
    pins = pinned(options.constraints)
    try:
        found = advisories(pins, options.database)
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(
            f"The database {options.database} cannot be asked: {error}. NOTHING WAS AUDITED.",
            file=sys.stderr,
        )
        return 3
    weak = [(name, version, ids) for (name, version), ids in zip(pins, found, strict=True) if ids]
    for name, version, ids in weak:
        print(f"{name} {version}: {', '.join(ids)}")
    print(f"{len(pins)} versions were audited, {len(weak)} of them have advisories.")
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
