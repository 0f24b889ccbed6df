"""Text: tokenizers with exact bytes, corpora, token shards, and the batches cut from them."""

from palimpsest.text.batches import (
    Batch,
    RandomWindowSampler,
    Sampler,
    StreamBatch,
    StreamSampler,
    WindowSampler,
    consecutive_windows,
    make_sampler,
)
from palimpsest.text.corpus import Corpus, load_corpus
from palimpsest.text.documents import (
    Document,
    is_validation_by_hash,
    prepare_wikitext,
    read_documents,
    read_hashed,
    split_documents,
)
from palimpsest.text.errors import CorpusError, ShardError, TextError, TokenizerError, WindowError
from palimpsest.text.reading import is_stream
from palimpsest.text.shards import open_shards, write_shards
from palimpsest.text.stream_decoder import StreamDecoder
from palimpsest.text.subword import HFTokenizer, SentencePieceTokenizer
from palimpsest.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "Batch",
    "ByteTokenizer",
    "Corpus",
    "CorpusError",
    "Document",
    "HFTokenizer",
    "RandomWindowSampler",
    "Sampler",
    "SentencePieceTokenizer",
    "ShardError",
    "StreamBatch",
    "StreamDecoder",
    "StreamSampler",
    "TextError",
    "Tokenizer",
    "TokenizerError",
    "WindowError",
    "WindowSampler",
    "consecutive_windows",
    "is_stream",
    "is_validation_by_hash",
    "load_corpus",
    "load_tokenizer",
    "make_sampler",
    "open_shards",
    "prepare_wikitext",
    "read_documents",
    "read_hashed",
    "split_documents",
    "write_shards",
]
