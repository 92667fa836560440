"""`python -m askew` is `askew`."""

from __future__ import annotations

from askew.cli import main

if __name__ == "__main__":
    main()
