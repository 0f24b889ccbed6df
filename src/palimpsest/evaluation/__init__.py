"""Measuring a language model on text: perplexity and bits per byte, by a stated protocol."""

from palimpsest.evaluation.inference import Precision, inference
from palimpsest.evaluation.perplexity import check_tokenizer, evaluate_documents, evaluate_text
from palimpsest.evaluation.protocol import Protocol
from palimpsest.evaluation.result import EvaluationResult, results_table

__all__ = [
    "EvaluationResult",
    "Precision",
    "Protocol",
    "check_tokenizer",
    "evaluate_documents",
    "evaluate_text",
    "inference",
    "results_table",
]
