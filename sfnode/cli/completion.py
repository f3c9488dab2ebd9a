"""`sfnode completion`: a script with which a shell completes commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

PROGRAM = "sfnode"
VARIABLE = "_SFNODE_COMPLETE"
"""The variable with which the script asks for completions; click derives it from the program's name."""


@click.command
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and their values.

    \b
    bash:  sfnode completion bash > ~/.local/share/bash-completion/completions/sfnode
    zsh:   sfnode completion zsh > ~/.zfunc/_sfnode    (with ~/.zfunc in $fpath)
    fish:  sfnode completion fish > ~/.config/fish/completions/sfnode.fish

    Open a new shell then.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
