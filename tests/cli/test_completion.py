"""`sfnode completion`: scripts that shells accept, and completions of commands, options and values."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from sfnode.cli.groups import PROGRAM, SHELLS, VARIABLE
from sfnode.cli.main import cli
from tests.cli.helpers import Run


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_accepts_its_script(shell: str, sfnode: Run, tmp_path: Path) -> None:
    ended = sfnode("completion", shell)
    assert (ended.status, ended.err) == (0, "")
    assert f"{VARIABLE}={shell}_complete" in ended.out
    assert PROGRAM in ended.out
    script = tmp_path / "script"
    script.write_text(ended.out)
    if shutil.which(shell):  # bash is everywhere; the others are looked at where they are
        option = "--no-execute" if shell == "fish" else "-n"
        assert subprocess.run([shell, option, script], capture_output=True).stderr == b""


def test_bash_completes_with_the_script(sfnode: Run, tmp_path: Path) -> None:
    """Run the script in bash, with a program called sfnode that records its environment."""
    (tmp_path / "script").write_text(sfnode("completion", "bash").out)
    program = tmp_path / "sfnode"
    program.write_text('#!/bin/sh\n[ "$_SFNODE_COMPLETE" = bash_complete ] && echo plain,trainer\n')
    program.chmod(0o755)
    words = 'COMP_WORDS=(sfnode join --role ""); COMP_CWORD=3'
    ask = f'{words}; _sfnode_completion sfnode; echo "${{COMPREPLY[@]}}"'
    ended = subprocess.run(
        ["bash", "-c", f"source {tmp_path}/script; {ask}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert ended.stdout.split() == ["trainer"]


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "inv", {"invite"}),
        (["join"], "--until", {"--until-complete"}),
        (["join", "--set"], "noise", {"noise.multiplier=", "noise.epsilon=", "noise.clip="}),
        (["join", "--role"], "", {"trainer", "relay"}),
        (["completion"], "", set(SHELLS)),
    ],
)
def test_commands_options_and_values_are_completed(
    words: list[str], incomplete: str, expected: set[str]
) -> None:
    found = BashComplete(cli, {}, PROGRAM, VARIABLE).get_completions(words, incomplete)
    assert {item.value for item in found} == expected
