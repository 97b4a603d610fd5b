"""The command line: names of commands, how errors are told, nothing slow imported before a command is chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# command -> (where it lives, its line in the overview); modules are imported when their command is called
COMMANDS = {
    "generate": ("yellowsound.cli.generate:generate", "Make a clip, or many, from prompts."),
    "plan": ("yellowsound.cli.plan:plan", "Say what lives where on a machine, and how long a clip takes."),
    "serve": ("yellowsound.cli.serve:serve", "Run the video job server with its page."),
    "weights": ("yellowsound.cli.weights:app", "List, download, check, describe or synthesise checkpoints."),
    "verify": ("yellowsound.cli.verify:verify", "Compare a checkpoint's clip with diffusers, bit for bit."),
    "doctor": ("yellowsound.cli.doctor:doctor", "Look at this machine and say what is missing."),
}


def build() -> App:
    """The command tree, with every command still unimported."""
    from cyclopts import App

    from yellowsound import __version__

    app = App(
        name="yellowsound",
        help="Short videos with sound from Kandinsky 6, on machines smaller than the model.",
        version=__version__,
        help_format="plaintext",  # rendering Markdown would take longer than everything else
    )
    for name, (target, line) in COMMANDS.items():
        app.command(target, name=name, help=line)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; every expected error is one line on stderr and exit code 2, Ctrl-C is 130.

    YELLOWSOUND_TRACEBACK=1 shows where an error came from.
    """
    from cyclopts import CycloptsError

    # Before torch starts its threads: waiting ones otherwise spin, and a clip beside one busy process took 34 to 90 s
    # on two cores instead of 14 (docs/log.md). What the user set stays; servers' workers inherit it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        build()(arguments if arguments is not None else sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"yellowsound: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # whatever it is, people get one line; the variable shows the rest
        if os.environ.get("YELLOWSOUND_TRACEBACK"):
            raise
        print(f"yellowsound: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _one_line(error: BaseException) -> str:
    """The error's own sentence; of an error that is none of ours, its kind as well."""
    text = " ".join(str(error).split()) or type(error).__name__
    ours = type(error).__module__.startswith(("yellowsound", "cyclopts"))
    expected = ours or isinstance(error, OSError | ImportError)
    if isinstance(error, OSError) and error.strerror and not ours:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    hint = " (YELLOWSOUND_TRACEBACK=1 shows where)"
    return text if expected else f"{type(error).__name__}: {text}{hint}"
