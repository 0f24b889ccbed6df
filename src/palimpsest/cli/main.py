"""The command line: picks the command, and turns what goes wrong into one line and an exit code.

Exit codes: 0 done; 1 it failed (a loss that is not finite, a full disk, too little memory, output
that could not be written); 2 a mistake in the arguments; 130 interrupted. A traceback means a bug
of palimpsest.

Only the chosen command's module is imported, and only after its name is known.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import signal
import sys
from collections.abc import Callable, Sequence

from palimpsest._version import __version__
from palimpsest.cli.options import as_typed, check_values_differ
from palimpsest.cli.output import lost_output, safe_streams
from palimpsest.errors import InputError, PalimpsestError, out_of_memory, work_failed
from palimpsest.heap import keep_freed_memory
from palimpsest.streams import plain, require_unicode

__all__ = ["main"]

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130

# command: (the class of its arguments, what it does)
COMMANDS = {
    "demo": (
        "DemoArgs",
        "three models trained, measured and sampled, on text that is already here",
    ),
    "train": ("TrainArgs", "train a model on text, or go on with a run"),
    "eval": ("EvalArgs", "perplexity of a text; LAMBADA, recall, loss by position, throughput"),
    "generate": ("GenerateArgs", "write on from a prompt, or from a session put away"),
    "inspect": (
        "InspectArgs",
        "a page that shows a model reading a text: surprise, predictions, gates, memory, state",
    ),
    "study": (
        "StudyArgs",
        "a model's state measured: geometry, horizons, interventions with random controls",
    ),
    "data": ("PrepareArgs", "prepare: token shards, made once, that training reads from disk"),
    "info": ("InfoArgs", "models, presets, backends and versions; or one model or run in full"),
    "bench": ("BenchArgs", "training and forward speed of each backend on this machine"),
    "match": ("MatchArgs", "sizes at which architectures have equally many parameters"),
    "compare": ("CompareArgs", "architectures at equal parameters, equal tokens and equal tuning"),
    "reproduce": (
        "ReproduceArgs",
        "a table of the papers measured again, beside what was published",
    ),
}
MODULES = {"eval": "evaluate", "data": "data_prepare"}
# the second word behind "eval": (the class of its arguments, its module)
EVALUATIONS = {
    "lambada": ("LambadaArgs", "eval_lambada"),
    "recall": ("RecallArgs", "eval_recall"),
    "positions": ("PositionsArgs", "eval_positions"),
    "throughput": ("ThroughputArgs", "eval_throughput"),
}

HELP = f"""\
usage: palimpsest [-h] [--version] COMMAND …

Language models whose whole context is one state, rewritten at every token.

commands:
{chr(10).join(f"  {name:<10}{what}" for name, (_, what) in COMMANDS.items())}

examples:
  palimpsest demo --out demo-run
  palimpsest train gpnm-1m --data book.txt --out runs/book
  palimpsest eval runs/book --text other.txt --protocol carried
  palimpsest eval runs/book lambada --data lambada_test.jsonl
  palimpsest generate runs/book --prompt "Once upon a time"
  palimpsest inspect runs/book --text other.txt --out book-inspect
  palimpsest data prepare books/ --tokenizer bytes --out books.shards
  palimpsest info runs/book
  palimpsest bench gpnm-1m --batch 16 --length 128
  palimpsest compare gpnm transformerpp --train train.txt --valid valid.txt --sizes 0.3M
  palimpsest reproduce generic --train wiki.train.raw --valid wiki.valid.raw

palimpsest COMMAND --help says more about one command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the words after the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with safe_streams() as (out, _):
        code: int | None
        try:
            code = _main(words)
        except KeyboardInterrupt:
            code = None
        if argv is None:  # the process ends: one more Ctrl-C ends it at once, without a traceback
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        if code is None:
            code = _complain("interrupted", INTERRUPTED)
        out.flush()
        if lost := lost_output(out):
            code = _complain(lost, code or FAILED)
        elif out.failure is not None:
            code = code or FAILED
    return code


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="", file=sys.stdout if words else sys.stderr)
        return DONE if words else MISTAKE
    if words[0] == "--version":
        print(f"palimpsest {__version__}")
        return DONE
    for before, word in zip(["", *words], words, strict=False):
        try:
            require_unicode(word, before if before.startswith("--") else "")
        except InputError as failure:
            return _complain(str(failure), MISTAKE)
    name = words[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return _complain(f"no command {name!r}; {hint}commands: {', '.join(COMMANDS)}", MISTAKE)
    try:
        return _run(name, words[1:])
    except SystemExit as stop:  # tyro's help (0) and its complaints about arguments (2)
        return stop.code if isinstance(stop.code, int) else DONE if stop.code is None else FAILED
    except Exception as failure:
        code = _exit_code(failure)
        if code is None:
            raise
        return _complain(_one_line(failure), code)


def _run(name: str, words: list[str]) -> int:
    import tyro

    from palimpsest.ops.compilation import report_compilation

    keep_freed_memory()
    class_name, module_name = COMMANDS[name][0], MODULES.get(name, name)
    if name == "eval" and len(words) > 1 and not any(w.startswith("-") for w in words[:2]):
        if words[1] not in EVALUATIONS:
            near = difflib.get_close_matches(words[1], EVALUATIONS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"no evaluation {words[1]!r}; {hint}evaluations: {', '.join(EVALUATIONS)}, or "
                "none of them, with --text, for perplexity"
            )
        class_name, module_name = EVALUATIONS[words.pop(1)]
        if {"-h", "--help"} & set(words):
            words = ["--help"]  # without MODEL, or tyro leaves it out of the usage
    if name == "data" and {"-h", "--help"}.isdisjoint(words[:1]):
        if words[:1] != ["prepare"]:
            asked = f"data {words[0]!r}: no such command; " if words else "data: "
            raise InputError(f"{asked}palimpsest data prepare FILE… --tokenizer T --out FOLDER")
        words = words[1:]
        name = "data prepare"
    module = importlib.import_module(f"palimpsest.cli.{module_name}")
    arguments = getattr(module, class_name)
    # the docstring as it stands: by itself tyro leaves the examples out
    about = inspect.getdoc(arguments)
    args = tyro.cli(arguments, args=words, prog=f"palimpsest {name}", description=about)
    run: Callable[[object], int] = module.run
    check_values_differ(args)
    try:
        with report_compilation(_note):
            return run(args)
    except PalimpsestError as failure:
        failure.args = (as_typed(str(failure), args, getattr(module, "OPTIONS", {})),)
        raise


def _exit_code(failure: Exception) -> int | None:
    """The exit code of a failure that needs no traceback, or None for a bug."""
    from palimpsest.ops import BackendUnavailableError

    if work_failed(failure):
        return FAILED
    if isinstance(failure, PalimpsestError | OSError | BackendUnavailableError):
        return MISTAKE
    return None


def _one_line(failure: Exception) -> str:
    if out_of_memory(failure):
        reason = str(failure).partition(".")[0]
        said = f" ({reason})" if reason else ""
        return f"out of memory{said}; use a smaller batch or length, or less text at once"
    if isinstance(failure, OSError) and not isinstance(failure, PalimpsestError):
        where = f"{failure.filename}: " if failure.filename else ""
        return f"{where}{failure.strerror or failure}"
    return " ".join(str(failure).split("\n"))


def _note(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed
        print(f"palimpsest: {text}", file=sys.stderr, flush=True)


def _complain(text: str, code: int) -> int:
    print(f"palimpsest: {plain(text)}", file=sys.stderr)
    return code
