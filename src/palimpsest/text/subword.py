"""Tokenizers that other libraries run: ``tokenizers`` JSON files and SentencePiece models.

Both libraries are imported when one of these is made, not before. What this file adds is the table
of bytes: what each id stands for, read from the file's own declarations.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from palimpsest.files import parse_json
from palimpsest.text.errors import TokenizerError
from palimpsest.text.tokenizer import Tokenizer

__all__ = ["HFTokenizer", "SentencePieceTokenizer"]

SPACE_MARK = "▁"  # U+2581, which stands for a space in pieces of the SentencePiece kind

# A long text is cut here, between a letter and the space before the next word. The pre-tokenizers
# of CUTTABLE start a new word at such a space whatever surrounds it, and the normalizers change
# nothing across it, so that the pieces have the ids of the whole.
CUT = re.compile(rb"[A-Za-z](?= [A-Za-z])")
CUTTABLE = frozenset({"ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})
NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
PIECE = 1 << 18  # bytes
HOLES = 1 << 20  # ids without a token that a vocabulary may have, beyond as many as it has tokens

# The names that a special token usually has; read only where no tokenizer_config.json says it.
USUAL_NAMES = {
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "[BOS]", "<|bos|>"),
    "eos": ("</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|eos|>", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
}


class HFTokenizer(Tokenizer):
    """A tokenizer JSON file of the ``tokenizers`` library.

    Known are the files whose decoder is byte-level (the bytes of a token follow from the GPT-2
    byte map) or turns a space mark into a space (Metaspace, or Replace), with or without
    ``<0xNN>`` byte fallback. Truncation, padding, BPE dropout and the post-processor's special
    tokens are off: ``encode`` gives the text and only the text, and the same ids each time. Added
    tokens have the ids that the library gives them, which are those of the file or, after a gap,
    the next free ones. An unknown token (``unk_token``) stands for no bytes.

    A prefix space that the file adds to some texts only (``a`` and `` a`` get the same ids) cannot
    be told from a real one: such a file counts one byte too few for a text that starts with a
    space.

    Args:
        definition: the text of the JSON file.
        name: what logs call it.
        bos: the token that begins a document, or None.
        eos: the token that ends a document, or None.
        pad: the padding token, or None.

    Raises:
        TokenizerError: a file the library refuses, an unknown decoder, a token not in the file, a
            vocabulary without tokens or with ids far beyond their number.
    """

    kind = "tokenizers"

    def __init__(
        self,
        definition: str,
        *,
        name: str = "tokenizers",
        bos: str | None = None,
        eos: str | None = None,
        pad: str | None = None,
    ) -> None:
        import tokenizers

        try:
            self._json: dict[str, Any] = parse_json(definition)
            backend = tokenizers.Tokenizer.from_str(definition.removeprefix("\ufeff"))
        except Exception as error:  # the library raises a bare Exception
            raise TokenizerError(
                name, f"the tokenizers library refuses it ({error})", "pass its own JSON format"
            ) from error
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # a special name in a text stays text
        if getattr(backend.model, "dropout", None) is not None:
            backend.model.dropout = None  # random merges, which no two readings share
        self._backend = backend
        self._cuttable = _cuttable(self._json)
        self._names = {"bos": bos, "eos": eos, "pad": pad}
        ids = {
            which: None if token is None else self._id_of(token, which, name)
            for which, token in self._names.items()
        }
        added = backend.get_added_tokens_decoder()
        special = {index for index, token in added.items() if token.special}
        special |= {index for index in ids.values() if index is not None}
        vocab = backend.get_vocab(with_added_tokens=True)
        _check_vocab(vocab, name)
        table = _hf_table(self._json, vocab, name)
        for index, token in added.items():
            table[index] = token.content.encode("utf-8")
        for index in special | _unknown_ids(self._json, vocab):
            table[index] = b""
        probe = b"".join(table[i] for i in backend.encode("a", add_special_tokens=False).ids)
        super().__init__(
            name=name,
            table=table,
            special_ids=special,
            pad_id=ids["pad"],
            bos_id=ids["bos"],
            eos_id=ids["eos"],
            prefix_space=probe.startswith(b" "),
        )

    @classmethod
    def from_file(cls, path: str | Path) -> HFTokenizer:
        """Read a file; begin, end and padding come from ``tokenizer_config.json`` beside it.

        Where there is no such file, a special token of a usual name is taken: ``<s>``,
        ``<|begin_of_text|>``, ``<bos>`` … begin, ``</s>``, ``<|endoftext|>``, ``<eos>`` … end,
        ``<pad>`` … pad; pass the names to the constructor where that is wrong.

        Raises:
            TokenizerError: as the constructor.
        """
        path = Path(path)
        data, definition = _read_object(path)
        beside = path.with_name("tokenizer_config.json")
        if beside.is_file():
            config, _ = _read_object(beside)
            names = {which: _content(config.get(f"{which}_token")) for which in USUAL_NAMES}
        else:
            added = data.get("added_tokens") or []
            special = {e["content"] for e in added if isinstance(e, dict) and e.get("special")}
            names = {
                which: next((token for token in usual if token in special), None)
                for which, usual in USUAL_NAMES.items()
            }
        return cls(definition, name=f"{path.resolve().parent.name}/{path.name}", **names)

    def _id_of(self, token: str, which: str, name: str) -> int:
        index: int | None = self._backend.token_to_id(token)
        if index is None:
            raise TokenizerError(
                name, f"{which}={token!r} is no token of this tokenizer", "name one that it has"
            )
        return index

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_pieces(self, utf8: bytes | memoryview) -> Iterator[NDArray[Any]]:
        """Cut between words if that changes no id (see :meth:`Tokenizer.encode_pieces`)."""
        start = 0
        while start < len(utf8):
            found = CUT.search(utf8, start + PIECE) if self._cuttable else None
            stop = len(utf8) if found is None else found.end()
            yield from super().encode_pieces(utf8[start:stop])
            start = stop

    def _definition(self) -> dict[str, Any]:
        return {"tokenizer": self._json, **self._names}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> HFTokenizer:
        """The tokenizer that ``to_json`` described."""
        names = {which: definition[which] for which in USUAL_NAMES}
        return cls(json.dumps(definition["tokenizer"]), name=name, **names)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (BPE or unigram), through the extra ``sentencepiece``.

    The bytes of a piece are its text with ``▁`` as a space; a byte-fallback piece ``<0xNN>`` is
    that byte; control pieces are special. Two things are not in the ids and cannot be counted
    from them: a ``▁`` (U+2581) written in the text itself comes back as a space (1 byte of 3),
    and an unknown piece, in a model without byte fallback, stands for no bytes.

    Args:
        model: the bytes of the model file.
        name: what logs call it.

    Raises:
        ImportError: the package sentencepiece is not installed.
        TokenizerError: not a SentencePiece model, or one that marks words at their end.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, *, name: str = "sentencepiece") -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise ImportError(
                "reading a SentencePiece model needs the package sentencepiece: "
                "pip install palimpsest-lm[sentencepiece]"
            ) from error
        try:
            backend = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                name, f"not a SentencePiece model ({error})", "pass a .model file"
            ) from error
        self._model = model
        self._backend = backend
        table: list[bytes] = []
        special: list[int] = []
        for index in range(backend.get_piece_size()):
            piece: str = backend.id_to_piece(index)
            if backend.is_control(index):
                special.append(index)
                table.append(b"")
            elif backend.is_unknown(index):
                table.append(b"")
            elif backend.is_byte(index):
                table.append(bytes([int(piece[3:5], 16)]))
            else:
                table.append(piece.replace(SPACE_MARK, " ").encode("utf-8"))
        probe = b"".join(table[i] for i in backend.encode("a"))
        if probe.endswith(b" "):
            raise TokenizerError(
                name, "it marks words at their end", "only models that mark their start are known"
            )
        super().__init__(
            name=name,
            table=table,
            special_ids=special,
            pad_id=_id_or_none(backend.pad_id()),
            bos_id=_id_or_none(backend.bos_id()),
            eos_id=_id_or_none(backend.eos_id()),
            prefix_space=probe.startswith(b" "),
        )

    @classmethod
    def from_file(cls, path: str | Path) -> SentencePieceTokenizer:
        """Read a ``.model`` file.

        Raises:
            ImportError, TokenizerError: as the constructor.
        """
        path = Path(path)
        return cls(path.read_bytes(), name=f"{path.resolve().parent.name}/{path.name}")

    def _encode_text(self, text: str) -> list[int]:
        return list(self._backend.encode(text, enable_sampling=False))

    def _definition(self) -> dict[str, Any]:
        return {"model": base64.b64encode(self._model).decode("ascii")}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> SentencePieceTokenizer:
        """The tokenizer that ``to_json`` described."""
        return cls(base64.b64decode(definition["model"]), name=name)


def _read_object(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object and its text.

    Raises:
        TokenizerError: not a JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = parse_json(text)
    except ValueError as error:
        raise TokenizerError(path, f"not JSON ({error})", "write or fetch it again") from error
    if not isinstance(data, dict):
        raise TokenizerError(path, "not a JSON object", "write or fetch it again")
    return data, text


def _check_vocab(vocab: dict[str, int], name: str) -> None:
    if not vocab:
        raise TokenizerError(name, "its vocabulary has no token", "pass a trained tokenizer")
    largest = max(vocab.values())
    if largest + 1 > 2 * len(vocab) + HOLES:
        raise TokenizerError(
            name,
            f"id {largest} in a vocabulary of {len(vocab)} tokens: a model would need a row for "
            "each of the ids between",
            "number the tokens from 0 on",
        )


def _unknown_ids(data: dict[str, Any], vocab: dict[str, int]) -> set[int]:
    """The id that stands for any text the vocabulary lacks, and so for no bytes of its own."""
    model = data["model"]
    token = model.get("unk_token")
    unknown = vocab.get(token) if isinstance(token, str) else model.get("unk_id")
    return {unknown} if isinstance(unknown, int) else set()


def _cuttable(data: dict[str, Any]) -> bool:
    """Whether a text cut at :data:`CUT` has the ids of the whole."""
    if data["model"].get("type", "BPE") != "BPE":
        return False
    words = _steps(data.get("pre_tokenizer"), "pretokenizers")
    split = any(
        step["type"] in CUTTABLE and (step["type"] != "ByteLevel" or step.get("use_regex", True))
        for step in words
        if step["type"] not in ("Digits", "Punctuation")  # these leave letters and spaces joined
    )
    plain = all(
        not (entry["lstrip"] or entry["rstrip"]) and " " not in entry["content"]
        for entry in data.get("added_tokens") or []
    )
    known = all(step["type"] in CUTTABLE for step in words)
    normalizers = _steps(data.get("normalizer"), "normalizers")
    return split and known and plain and all(step["type"] in NORMALIZERS for step in normalizers)


def _steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences resolved."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for inside in part[inner] for step in _steps(inside, inner)]


def _id_or_none(index: int) -> int | None:
    return index if index >= 0 else None


def _content(token: Any) -> str | None:
    """A token in tokenizer_config.json: text, an object with ``content``, or nothing."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _hf_table(data: dict[str, Any], vocab: dict[str, int], name: str) -> list[bytes]:
    """The bytes of every entry of a ``tokenizers`` vocabulary, by the file's own decoder."""
    decoder = data.get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    table = [b""] * (max(vocab.values()) + 1)
    if "ByteLevel" in kinds:
        to_byte = _byte_of_character()
        for token, index in vocab.items():
            known = all(character in to_byte for character in token)
            table[index] = bytes(to_byte[c] for c in token) if known else token.encode("utf-8")
        return table
    marks = [step.get("replacement") for step in steps if step.get("type") == "Metaspace"]
    marks += [
        step["pattern"].get("String")
        for step in steps
        if step.get("type") == "Replace" and step.get("content") == " "
    ]
    if not marks or marks[0] is None:
        raise TokenizerError(
            name,
            f"decoder {kinds} does not tell the bytes of a token",
            "known are ByteLevel, Metaspace and Replace with a space mark",
        )
    fallback = "ByteFallback" in kinds or bool(data["model"].get("byte_fallback"))
    for token, index in vocab.items():
        if fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            table[index] = bytes([int(token[3:5], 16)])
        else:
            table[index] = token.replace(marks[0], " ").encode("utf-8")
    return table


def _byte_of_character() -> dict[str, int]:
    """The GPT-2 byte map, character to byte.

    A byte that prints is its own Latin-1 character; the 68 others, in order, are the characters
    from U+0100 on (so a space is ``Ġ``).
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in prints]
    mapping = {chr(value): value for value in prints}
    mapping.update({chr(0x100 + n): value for n, value in enumerate(others)})
    return mapping
