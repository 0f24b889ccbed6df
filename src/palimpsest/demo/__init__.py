"""The demonstration: three models trained, measured and sampled on text that every Python has."""

from palimpsest.demo.run import DemoSettings, run_demo

__all__ = ["DemoSettings", "run_demo"]
