"""Headless Chromium for tests of pages: the page as it is in the end, and what it asked for on the
way."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

OPTIONS = (
    "headless no-sandbox disable-gpu disable-background-networking disable-component-update "
    "disable-sync no-first-run "
    "disable-extensions disable-default-apps dump-dom virtual-time-budget=5000"
)


def visit(address: str, profile: Path, *more: str) -> str:
    """The page as Chromium leaves it; skips the test where there is none."""
    program = next(
        (
            p
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (p := shutil.which(name))
        ),
        None,
    )
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    ask = [
        program,
        *(f"--{option}" for option in OPTIONS.split()),
        f"--user-data-dir={profile}",
        *more,
    ]
    done = subprocess.run([*ask, address], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(dom: str) -> Any:
    """What a test's script wrote, as JSON, into <pre id="told">."""
    (text,) = re.findall(r'<pre id="told">(.*?)</pre>', dom, flags=re.S)
    return json.loads(text.replace("&quot;", '"').replace("&lt;", "<").replace("&amp;", "&"))
