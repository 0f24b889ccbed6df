"""Two small models that have read the same text."""

from __future__ import annotations

import pytest
import torch

import palimpsest
from palimpsest.inspect import Inspection, collect
from palimpsest.text import ByteTokenizer, Tokenizer
from tests.contract.configs import CONFIGS

NASTY = (
    "</script><script>document.title = 'taken'</script> <!-- & <b>bold</b> \"'`${x} "
    "{{data}} \\u003c é🙂日\u202e\x00\x1b\r\n\ttab\n"
)


def look(
    name: str, text: str | list[str], label: str, tokenizer: Tokenizer | None = None
) -> Inspection:
    tokenizer = tokenizer or ByteTokenizer()
    torch.manual_seed(2)
    first = next(iter(CONFIGS[name].values()))
    model = palimpsest.build(name, **{**first, "vocab_size": tokenizer.vocab_size}).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    texts = [text] if isinstance(text, str) else text
    return collect(model, tokenizer, [tokenizer.encode(t) for t in texts], label=label)


@pytest.fixture(scope="session")
def nasty() -> Inspection:
    """A recurrent model and a text that tries to break out of the page."""
    return look("gpnm", NASTY * 3, "one <&> $x^")


@pytest.fixture(scope="session")
def other() -> Inspection:
    """Another model on the same text."""
    return look("transformerpp", NASTY * 3, "two")
