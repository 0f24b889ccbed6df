"""A page on which one can look at a trained model reading a text."""

from palimpsest.inspect.collect import Inspection, collect
from palimpsest.inspect.run import write_inspection

__all__ = ["Inspection", "collect", "write_inspection"]
