"""sha256 of what the library writes, so that a damaged file is refused when it is read.

A JSON file holds the digest of its own content under ``"sha256"``; a safetensors file holds one of
its tensors and its description in its metadata; a folder's JSON file lists the digests of the files
next to it. Files without a digest, written before there were any, are read as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["DIGEST", "file_digest", "json_digest", "seal", "tensors_digest", "unseal"]

DIGEST = "sha256"
READ_BYTES = 1 << 20


def json_digest(value: Any) -> str:
    """The sha256, in hex, of a JSON value; independent of key order and white space."""
    plain = json.loads(json.dumps(value))  # keys become strings, tuples lists
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def seal(value: Mapping[str, Any], extra: str = "") -> dict[str, Any]:
    """The value with its digest as its first key, so that its line can be deleted by hand.

    Args:
        value: a JSON object.
        extra: what the digest also covers, such as the digest of a file's tensors.
    """
    content = {key: inner for key, inner in value.items() if key != DIGEST}
    return {DIGEST: json_digest([content, extra] if extra else content), **content}


def unseal(value: Mapping[str, Any], extra: str = "") -> tuple[dict[str, Any], bool]:
    """The value without its digest, and whether the digest is right (True if there is none)."""
    content = {key: inner for key, inner in value.items() if key != DIGEST}
    return content, DIGEST not in value or seal(content, extra)[DIGEST] == value[DIGEST]


def file_digest(path: Path) -> str:
    """The sha256, in hex, of a file's bytes, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """The sha256, in hex, of the names, dtypes, shapes and bytes of tensors, in one pass.

    Args:
        tensors: by name; the order does not matter. Those on another device are copied one by one.
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode("ascii"))
        flat = tensor.reshape(-1)
        if flat.stride(0) != 1:  # a single entry, of which contiguous() keeps any stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()
