"""LAMBADA's examples: where they come from, and where a text ends and its last word begins."""

from __future__ import annotations

import hashlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from palimpsest.errors import InputError
from palimpsest.text import CorpusError, Tokenizer, is_stream, read_hashed

__all__ = ["HUB", "SHA256", "LambadaExample", "LambadaText", "find_lambada", "read_lambada"]

HUB = "hub"
CONNECT_SECONDS = 5.0
EXAMPLES = 5153
SHA256 = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
REPOSITORY = "EleutherAI/lambada_openai"
REVISION = "900124bf3b8235c6daf21033af9948b3f07346c4"
FILE = "data/lambada_test.jsonl"
WHERE = (
    f"get {FILE} of the dataset {REPOSITORY} on huggingface.co ({EXAMPLES:,} lines, "
    f"sha256 {SHA256})"
)


class LambadaText(NamedTuple):
    """The lines of a file: where each stands, its context, and its last word."""

    where: str
    context: str
    word: str


@dataclass(frozen=True)
class LambadaExample:
    """One example as ids.

    Attributes:
        context: what is read before the word, BOS included where there is one.
        word: the ids of the last word with the space before it; at least one.
        exact: whether the ids of the whole text begin with those of the context, so that
            context and word together are the ids of the text.
    """

    context: tuple[int, ...]
    word: tuple[int, ...]
    exact: bool


def find_lambada(data: str | Path) -> Path:
    """The file of examples.

    Args:
        data: a file of objects with a text each (.jsonl, .json, also .gz) or a pipe of them, or
            "hub": the file of EleutherAI, through huggingface_hub and its cache.

    Raises:
        InputError: it is not there; the message says where to get it and its hash.
    """
    if str(data) != HUB:
        path = Path(data)
        if not (path.is_file() or is_stream(path)):
            reason = "is a folder, not the file" if path.is_dir() else "no such file"
            raise InputError(f"{path}: {reason}; {WHERE}, or pass {HUB!r}")
        return path
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise InputError(
            f"data={HUB!r} needs huggingface_hub (pip install huggingface_hub); or {WHERE}"
        ) from None
    _check_connection()
    try:
        path = Path(hf_hub_download(REPOSITORY, FILE, repo_type="dataset", revision=REVISION))
    except Exception as failure:  # offline, a proxy, a full cache: as many classes as causes
        reason = " ".join(str(failure).split())[:160]
        raise InputError(
            f"data={HUB!r}: the hub could not be read ({type(failure).__name__}: {reason}); {WHERE}"
        ) from failure
    if file_sha256(path) != SHA256:
        raise InputError(f"{path}: is not the file that was expected from the hub; {WHERE}")
    return path


def _check_connection() -> None:
    """Fail at once without a network, which the hub's client tries for half a minute.

    A file that is in the hub's cache needs none.

    Raises:
        InputError: the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_url, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE

    cached = try_to_load_from_cache(REPOSITORY, FILE, repo_type="dataset", revision=REVISION)
    if isinstance(cached, str) or HF_HUB_OFFLINE:
        return
    url = hf_hub_url(REPOSITORY, FILE, repo_type="dataset", revision=REVISION)
    ask = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(ask, timeout=CONNECT_SECONDS):
            pass
    except urllib.error.HTTPError:
        pass  # it can be reached; what it answers is for its client to judge
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "reason", failure)
        if isinstance(reason, ssl.SSLError):
            return  # the client may know other certificates
        reason = getattr(reason, "strerror", None) or reason
        raise InputError(f"data={HUB!r}: the hub cannot be reached ({reason}); {WHERE}") from None


def file_sha256(path: Path) -> str:
    """The hash of a file, as ``sha256sum`` prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_lambada(path: Path, field: str = "text") -> tuple[list[LambadaText], str]:
    """Read a file or a pipe, once, and split each text at its last space.

    White space that ends the context goes to the word, as in the evaluation harness: the word is
    then what follows the context's last visible character.

    Returns:
        The texts, and the sha256 of the file as ``sha256sum`` prints it.

    Raises:
        CorpusError: a file that cannot be read, or a text that ends in white space.
    """
    found = []
    documents, sha256 = read_hashed(path, field=field)
    for document in documents:
        context, space, last = document.text.rpartition(" ")
        if not last or last != last.rstrip():
            raise CorpusError(
                document.source,
                "the text does not end in a word",
                "cut the white space at its end, or remove the example",
            )
        kept = context.rstrip()
        found.append(LambadaText(document.source, kept, context[len(kept) :] + space + last))
    return found, sha256


def encode_lambada(
    texts: Sequence[LambadaText], tokenizer: Tokenizer, *, bos: bool, max_context: int | None
) -> list[LambadaExample]:
    """Texts to ids: the word's are those of the whole text behind as many as the context has.

    Args:
        texts: from :func:`read_lambada`.
        tokenizer: the model's.
        bos: whether BOS is read before each context.
        max_context: keep only so many of the context's last ids (BOS not counted); None keeps all.

    Raises:
        InputError: a word without ids of its own, or with nothing before it that could predict it.
    """
    lead = (tokenizer.bos_id,) if bos and tokenizer.bos_id is not None else ()
    examples = []
    for text in texts:
        before = tokenizer.encode(text.context) if text.context else []
        whole = tokenizer.encode(text.context + text.word)
        word = tuple(whole[len(before) :])
        exact = whole[: len(before)] == before
        if max_context is not None:
            before = before[len(before) - min(max_context, len(before)) :]
        context = (*lead, *before)
        if not word:
            raise InputError(
                f"{text.where}: tokenizer {tokenizer.name!r} leaves no token for the last word "
                f"{text.word!r} alone; remove the example"
            )
        if not context:
            raise InputError(
                f"{text.where}: nothing precedes the word {text.word!r}; remove the example, or "
                "use a tokenizer with BOS"
            )
        examples.append(LambadaExample(context, word, exact))
    return examples
