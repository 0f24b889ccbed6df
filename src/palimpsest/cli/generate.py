"""``palimpsest generate``: write on from a prompt, or from a session put away."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from palimpsest.cli.model_source import check_output_path, find_model, pick_device
from palimpsest.cli.output import reader_gone
from palimpsest.errors import InputError
from palimpsest.evaluation import Precision
from palimpsest.generation import SamplingConfig, Session
from palimpsest.streams import plain
from palimpsest.training.readability import readability_note
from palimpsest.training.signals import StopSignals

__all__ = ["GenerateArgs", "run"]

EXIT_SIGNAL = 128  # a shell's convention: 130 after Ctrl-C


@dataclass(frozen=True)
class GenerateArgs:
    """Write on from a prompt; the text goes to standard output while it is written.

    Examples:

    palimpsest generate runs/book --prompt "Once upon a time" --top-p 0.9 --stop "\\n\\n"

    palimpsest generate runs/book --prompt "Chapter 1" --save-session book.session

    palimpsest generate runs/book --session book.session --save-session book.session
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run's folder (its newest checkpoint), a checkpoint's folder or a model's folder."""

    prompt: str | None = None
    """Text to go on from. Without any prompt, standard input is read where it is a file or a pipe;
    "" begins from nothing."""

    prompt_file: Path | None = None
    """A UTF-8 file whose whole text is one prompt, line ends included; not one prompt per line."""

    max_new_tokens: int = 256
    """How many tokens at most."""

    temperature: float = 1.0
    """Divides the logits; 0 always takes the most probable token."""

    top_k: int | None = None
    """Keep the k most probable tokens."""

    top_p: float = 1.0
    """Keep the smallest set of most probable tokens with this probability."""

    min_p: float = 0.0
    """Keep tokens at least this fraction as probable as the most probable one."""

    repetition_penalty: float = 1.0
    """Above 1 makes tokens that have occurred less likely."""

    stop: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Text that ends the writing, and is not written; may be repeated. \\n is a line end, \\t a
    tab."""

    seed: int | None = None
    """Seed of the first sample; sample i has seed + i. By default 0, or the session's own random
    numbers."""

    num_samples: int = 1
    """How many continuations, one after another."""

    session: Path | None = None
    """Take up a session that was put away; a prompt is then read after what it has read."""

    save_session: Path | None = None
    """Put the session away in this file, also when interrupted."""

    echo: bool = False
    """Write the prompt too."""

    window: int | None = None
    """Tokens of context that attention reads; 0 for all. By default the length that the model was
    trained on. Learned positions end there. Models with a state of one size have no window."""

    precision: Precision | None = None
    """bf16 computes matrix products in bfloat16. By default fp32, or as the session was."""

    tokenizer: str | None = None
    """"bytes", a tokenizer file, or a folder that holds one. By default the model's own."""

    device: str = "auto"
    """"auto" (a GPU where there is one), "cpu", "cuda", …"""


def run(args: GenerateArgs) -> int:
    """Carry out the command; 0 when done, 128 + signal when stopped with the session saved."""
    if args.num_samples < 1:
        raise InputError(f"--num-samples {args.num_samples}: must be at least 1")
    if args.num_samples > 1 and args.save_session is not None:
        raise InputError("--save-session with --num-samples: a session is one text; make one")
    sampling = SamplingConfig(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
    )
    source = find_model(args.model)
    check_output_path(args.save_session, "--save-session")
    prompt = _prompt(args)
    model = source.load(pick_device(args.device), args.window)
    tokenizer = source.tokenizer(args.tokenizer)
    if args.session is not None:
        session = Session.load(args.session, model, tokenizer)
        if args.window is not None and session.window != args.window:
            raise InputError(
                f"--window {args.window}: the session was begun with a window of {session.window}"
            )
        if args.precision not in (None, session.precision):
            raise InputError(
                f"--precision {args.precision}: the session was begun in {session.precision}"
            )
        if args.seed is not None:
            session = session.fork(args.seed)
    else:
        session = Session(
            model,
            tokenizer,
            args.seed or 0,
            precision=args.precision or "fp32",
            trained_with=source.trained_with,
        )
    if prompt:
        _write(session.feed(prompt))
        if args.echo:
            _write(prompt)
    window = _window_note(session, args.max_new_tokens)
    code = (
        _one(args, session, sampling)
        if args.num_samples == 1
        else _samples(args, session, sampling)
    )
    for note in (window, readability_note(source.run or {}, source.step)):
        if note is not None:
            print(note, file=sys.stderr)
    return code


def _samples(args: GenerateArgs, session: Session, sampling: SamplingConfig) -> int:
    for i in range(args.num_samples):
        seed = (args.seed or 0) + i
        print(f"--- sample {i + 1} of {args.num_samples}, seed {seed}")
        sample = session.fork(seed)
        for piece in sample.generate(args.max_new_tokens, sampling, _stop(args)):
            _write(piece)
            if reader_gone():
                return 0
        print(sample.flush())
        _end(sample)
    return 0


def _one(args: GenerateArgs, session: Session, sampling: SamplingConfig) -> int:
    pieces = session.generate(args.max_new_tokens, sampling, _stop(args))
    if args.save_session is None:
        for piece in pieces:
            _write(piece)
            if reader_gone():  # nothing else is made of the text
                return 0
        print(session.flush())
        _end(session)
        return 0
    with StopSignals() as signals:
        for piece in pieces:
            _write(piece)
            if signals.received is not None:
                break
    # what waits to be given out is saved, and the continuation gives it out
    session.save(args.save_session)
    print()
    _end(session)
    print(f"session saved: {plain(args.save_session)}", file=sys.stderr)
    return 0 if signals.received is None else EXIT_SIGNAL + signals.received


def _window_note(session: Session, tokens: int) -> str | None:
    """That attention reads a window, if the text may become longer than it."""
    position = getattr(session.state, "position", None)
    if position is None:
        return None
    note = session.model.describe_reading(int(position[0]) + tokens)
    return f"{note}; --window changes it" if note else None


def _end(session: Session) -> None:
    """Say on standard error that the text has become as long as the model holds."""
    if session.room == 0:
        print(f"the text ends here: {session.model.describe_bound()}", file=sys.stderr)


def _prompt(args: GenerateArgs) -> str:
    """The prompt, from wherever it was given."""
    if args.prompt is not None and args.prompt_file is not None:
        raise InputError("--prompt with --prompt-file: give one of the two")
    if args.prompt is not None:
        return args.prompt
    if args.prompt_file is not None:
        where, data = f"--prompt-file {args.prompt_file}", args.prompt_file.read_bytes()
        if not data:
            raise InputError(
                f"{where}: is empty; the file's whole text is one prompt "
                '(--prompt "" starts with an empty one)'
            )
    elif args.session is not None:
        return ""
    elif sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "there is no prompt: give --prompt TEXT, --prompt-file FILE or standard input "
            '(--prompt "" begins from nothing)'
        )
    else:
        where, data = "standard input", sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as failure:
        raise InputError(
            f"{where}: not UTF-8: byte 0x{data[failure.start]:02x} at offset {failure.start}; "
            "convert it to UTF-8"
        ) from None


def _stop(args: GenerateArgs) -> list[str]:
    return [s.replace("\\n", "\n").replace("\\t", "\t") for s in args.stop]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
