"""Measuring a language model, by a stated protocol, with everything one needs to believe it."""

from palimpsest.evaluation.by_position import PositionsResult, evaluate_positions
from palimpsest.evaluation.inference import Precision, inference
from palimpsest.evaluation.lambada import LambadaResult, evaluate_lambada
from palimpsest.evaluation.perplexity import check_tokenizer, evaluate_documents, evaluate_text
from palimpsest.evaluation.plot import plot_positions
from palimpsest.evaluation.protocol import Protocol
from palimpsest.evaluation.recall import RecallResult, evaluate_recall
from palimpsest.evaluation.record import Result, load_result
from palimpsest.evaluation.result import EvaluationResult, results_table
from palimpsest.evaluation.statistics import Estimate
from palimpsest.evaluation.throughput import (
    ThroughputResult,
    measure_throughput,
    throughput_table,
)

__all__ = [
    "Estimate",
    "EvaluationResult",
    "LambadaResult",
    "PositionsResult",
    "Precision",
    "Protocol",
    "RecallResult",
    "Result",
    "ThroughputResult",
    "check_tokenizer",
    "evaluate_documents",
    "evaluate_lambada",
    "evaluate_positions",
    "evaluate_recall",
    "evaluate_text",
    "inference",
    "load_result",
    "measure_throughput",
    "plot_positions",
    "results_table",
    "throughput_table",
]
