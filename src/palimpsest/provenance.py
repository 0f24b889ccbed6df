"""Where numbers come from: versions, commit, device."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

from palimpsest._version import __version__

__all__ = ["code_commit", "device_name", "software_versions", "versions"]

PACKAGE = Path(__file__).resolve().parent


def code_commit(folder: Path = PACKAGE) -> str | None:
    """The git commit of this package's source, with "+changes" where files differ from it.

    None where the package is not run from its own repository (installed from a wheel), or without
    git.
    """
    # An installation inside somebody else's repository must not report that repository.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return commit + ("+changes" if changed else "")


def software_versions() -> dict[str, str]:
    """Versions of palimpsest, torch and python."""
    return {
        "palimpsest": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def versions() -> dict[str, Any]:
    """Versions of all that computes the numbers, the commit and the threads among them."""
    return {
        **software_versions(),
        "commit": code_commit(),
        "numpy": numpy.__version__,
        "platform": platform.platform(terse=True),
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
