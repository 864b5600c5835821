"""The command line: ``plait run``, ``plan``, ``profile``, ``stream``, ``tune`` and others."""

from __future__ import annotations

from typing import Any

import click

from .. import __version__
from ..devices.errors import DeviceError, DeviceUnavailableError
from ..graph.values.errors import InternalError, PlaitError
from .convert import convert
from .devices import show_devices
from .help import HELP_OPTIONS, write_exit_codes
from .job import job
from .options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISTAKE, is_interrupt
from .output import print_error
from .pack import pack
from .parsing import CommandError
from .profile import profile
from .quantize import quantize
from .run import run, stream
from .show import show_plan
from .simulate import simulate
from .tune import tune


class _Commands(click.Group):
    """Turns errors into one message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PlaitError as error:
            print_error(error)
            ctx.exit(_exit_code(error))
        except BrokenPipeError:  # the reader has had enough: click ends quietly
            raise
        except OSError as error:
            print_error(CommandError(f"cannot write the output: {error.strerror}"))
            ctx.exit(EXIT_FAILED)
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            if not is_interrupt(error):
                raise
            ctx.exit(EXIT_INTERRUPTED)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return HELP_OPTIONS

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_exit_codes(formatter)


def _exit_code(error: PlaitError) -> int:
    if isinstance(error, DeviceUnavailableError):  # asked for by name
        return EXIT_MISTAKE
    failed = isinstance(error, DeviceError | InternalError)
    return EXIT_FAILED if failed else EXIT_MISTAKE


@click.group(cls=_Commands, context_settings={"max_content_width": 100})
@click.version_option(__version__, message="plait %(version)s")
def cli() -> None:
    """Run tensor graphs on several devices at once: plan, run, stream and profile them."""


for command in (convert, job, pack, profile, quantize, run, show_devices, show_plan, simulate):
    cli.add_command(command)
cli.add_command(stream)
cli.add_command(tune)
