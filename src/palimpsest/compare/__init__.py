"""Is one architecture better than another, at equal parameters, equal tokens and equal tuning?"""

from palimpsest.compare.curves import crossings
from palimpsest.compare.run import run_compare
from palimpsest.compare.settings import CompareSettings, ModelChoice, parse_model

__all__ = ["CompareSettings", "ModelChoice", "crossings", "parse_model", "run_compare"]
