"""The papers' experiments as data, and one function that measures them again."""

from palimpsest.reproduce.run import run_table, write_recipes
from palimpsest.reproduce.table import Column, DataSource, Row, Table
from palimpsest.reproduce.tables import Scale, get_table, list_tables

__all__ = [
    "Column",
    "DataSource",
    "Row",
    "Scale",
    "Table",
    "get_table",
    "list_tables",
    "run_table",
    "write_recipes",
]
