"""Keep freed memory in the process, so that training does not fetch its pages anew at every step.

glibc hands every freed block of more than a few MB back to the system. The next step asks for it
again, page by page, and the system clears each page first. At 131,072 tokens a step of the
triple-latent model spent more than half of its time on that (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# <malloc.h>
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_LARGEST = 2**31 - 1  # mallopt takes an int
_PAD = 64 * 2**20  # bytes by which the heap grows at least


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, for the life of the process.

    The commands of ``palimpsest`` call this; a program of your own does so if it likes, before it
    allocates much: it affects the whole process, whose memory then never shrinks below its peak.

    Returns:
        Whether anything was changed: True with glibc (Linux), False elsewhere.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  (musl has a mallopt-less libc and no such name)
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _LARGEST), (_TOP_PAD, _PAD))
    return all(mallopt(name, value) == 1 for name, value in wanted)
