"""The command line: arguments -> settings -> evaluate, judge or report; and the exit codes.

A subcommand's modules are imported where it is dispatched, so that ``--help`` and errors in flags cost
nothing.

::

    parser       the flags of every command
    arguments    flags -> TaskConfig
    keys         keys that a command was given
    commands     eval, judge and report being carried out
    terminal     what every command does with the terminal
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from otoscope.cli.parser import command_parser
from otoscope.cli.terminal import complain, silence_stdout
from otoscope.errors import LimitReachedError, OtoscopeError, RunInterruptedError

EXIT_BUG, EXIT_UNWRITABLE = 1, 6


def _without_values(words: Sequence[str]) -> Iterator[str]:
    """Yield what was not understood, without the values of flags: with a flag mistyped, one may be a key."""
    after_flag = False
    for word in words:
        is_flag = word.startswith("-")
        yield word.partition("=")[0] if is_flag else "..." if after_flag else word
        after_flag = is_flag


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; an ``OtoscopeError`` is shown as its message alone."""
    try:
        parser = command_parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            parser.of(args.command).error(f"unrecognized arguments: {' '.join(_without_values(unknown))}")
        # After the parser, so that --help and errors in flags load nothing that carries commands out.
        from otoscope.cli.commands import Command

        command = Command(args, os.environ)
    except KeyboardInterrupt:
        return RunInterruptedError.exit_code
    try:
        code = command.run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except OtoscopeError as error:
        what = "stopped" if isinstance(error, (LimitReachedError, RunInterruptedError)) else "error"
        complain(f"otoscope: {what}: {error}" if str(error) != "stopped" else "otoscope: stopped")
        command.say_how_to_resume()
        return error.exit_code
    except KeyboardInterrupt:
        complain("otoscope: stopped")
        return RunInterruptedError.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; what it was for is done.
        silence_stdout()
        return 0
    except OSError as error:
        silence_stdout()
        complain(f"otoscope: error: the report cannot be written: {error.strerror or error}")
        return EXIT_UNWRITABLE
    except Exception:  # our own bug: what a library said before it may quote a request with its key
        complain(command.traceback())
        return EXIT_BUG
    return code
