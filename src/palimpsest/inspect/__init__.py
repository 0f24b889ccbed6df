"""A page on which one can look at a trained model reading a text."""

from palimpsest.inspect.collect import collect
from palimpsest.inspect.inspection import Inspection
from palimpsest.inspect.run import write_inspection

__all__ = ["Inspection", "collect", "write_inspection"]
