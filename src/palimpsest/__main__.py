"""``python -m palimpsest``."""

from __future__ import annotations

import sys

from palimpsest.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
