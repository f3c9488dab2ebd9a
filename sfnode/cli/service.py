"""`sfnode service install` and `remove`: a node that the user's systemd starts and keeps running."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import click

from sfnode.cli.options import config_file, data_dir_option
from sfnode.cli.output import echo
from sfnode.defaults import DATA_DIR, UNITS, in_xdg_home, located
from sfnode.errors import Code, UserError

UNIT = """\
# Written by `sfnode service install`, removed by `sfnode service remove`.
[Unit]
Description=sfnode, a node of a training run, in {folder}
StartLimitIntervalSec=0

[Service]
ExecStart={start}
{environment}Restart=on-failure
RestartSec=15
# a node ends within two seconds and loses nothing
KillMode=mixed
TimeoutStopSec=10
# other programs come first
Nice=10
IOSchedulingClass=idle

[Install]
WantedBy=default.target
"""


@click.command(context_settings={"ignore_unknown_options": True})
@data_dir_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[LINK] [OPTION OF JOIN]...")
@click.pass_context
def install(context: click.Context, data_dir: Path, words: tuple[str, ...]) -> None:
    """Write a unit for the user's systemd that runs `sfnode join` in a folder, and print the command that
    enables it.

    All options but --data-dir and --profile are for `sfnode join`, which checks them now. A link is kept in
    the unit's environment, because others see command lines. A folder with a run needs none.
    """
    from sfnode.cli.join import join

    if shutil.which("systemctl") is None:
        raise UserError(
            Code.BAD_OPTION,
            "there is no systemd on this machine, which would run the service",
            "Run `sfnode join` in tmux or screen, by launchd on a Mac, or in a container (deploy/README.md).",
        )
    folder = data_dir.absolute()
    given = join.make_context("sfnode join", list(words), parent=context.find_root())
    link = given.params["link"]
    unit, home = _unit(folder), context.find_root().params.get("config")
    config = ["--config", str(config_file(home).absolute())] if home else []
    rest = [word for word in words if word not in (link, "-")]
    start = [sys.executable, "-m", "sfnode", *config, "join", "--data-dir", str(folder), *rest]
    secret = f"Environment={_quoted(f'SFNODE_LINK={link}')}\n" if link else ""
    text = UNIT.format(
        folder=str(folder).replace("%", "%%"), start=" ".join(map(_quoted, start)), environment=secret
    )
    from sfnode.store.disk_errors import disk_faults

    with disk_faults(unit):
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.touch(mode=0o600)
        unit.write_text(text, encoding="utf-8")
    echo(f"wrote {unit}; these start it, now and whenever you log in:")
    echo(f"  systemctl --user daemon-reload\n  systemctl --user enable --now {unit.stem}")
    echo("This also runs it while you are not logged in:\n  loginctl enable-linger")


@click.command
@data_dir_option
def remove(data_dir: Path) -> None:
    """Remove the unit that `sfnode service install` wrote for a folder. The folder itself stays."""
    unit = _unit(data_dir.absolute())
    if not unit.exists():
        raise UserError(
            Code.BAD_OPTION,
            f"there is no service for {data_dir}: no file {unit}",
            "Name its folder with --data-dir or --profile, as it was installed.",
        )
    unit.unlink()
    (unit.parent / "default.target.wants" / unit.name).unlink(missing_ok=True)
    echo(f"removed {unit}; these end the node if it runs:")
    echo(f"  systemctl --user stop {unit.stem}\n  systemctl --user daemon-reload")


def _unit(folder: Path) -> Path:
    """Return the path of the unit for a data folder. The unit is named after the folder.

    Raises UserError BAD_OPTION if the unit is for another folder of that name.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", folder.name)
    unit = in_xdg_home(UNITS) / (
        "sfnode.service" if folder == located(DATA_DIR) else f"sfnode-{name}.service"
    )
    if unit.exists() and f"{_quoted('--data-dir')} {_quoted(str(folder))}" not in unit.read_text("utf-8"):
        raise UserError(
            Code.BAD_OPTION,
            f"{unit} is the service of another folder called {folder.name}",
            "Rename one of the two folders.",
        )
    return unit


def _quoted(word: str) -> str:
    """Return a word of a command line, or an assignment, quoted for systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
