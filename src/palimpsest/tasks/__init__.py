"""Synthetic tasks that ask what a state remembers."""

from palimpsest.tasks.base import IGNORED, RecallScore, Task, TaskBatch
from palimpsest.tasks.mqar import MQARBatch, MQARTask
from palimpsest.tasks.recall import RecallBatch, RecallTask

__all__ = [
    "IGNORED",
    "MQARBatch",
    "MQARTask",
    "RecallBatch",
    "RecallScore",
    "RecallTask",
    "Task",
    "TaskBatch",
]
