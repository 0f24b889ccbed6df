"""The recurrences as pure functions on tensors: a reference loop and fast exact forms for each."""

from palimpsest.ops.dispatch import BackendUnavailableError, backend_calls, force_backend

__all__ = ["BackendUnavailableError", "backend_calls", "force_backend"]
