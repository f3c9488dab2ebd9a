"""Tests of the program: its start, its help, and its exit status."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sfnode import __version__
from sfnode.cli.main import cli
from sfnode.store.data_folder import open_data_dir
from tests.cli.helpers import Run


@pytest.mark.parametrize(
    "arguments",
    [
        ("join", "--role", "king"),
        ("join", "--set", "data.shard=5/4"),
        ("join", "--set", "node.queries=65"),
        ("join", "--display-name", "a" * 33),
        ("join", "--notify", "  "),
        ("join", "--notify", "''"),
        ("join", "--team", "\x1b[31mred"),
        ("swarm", "--nodes", "0"),
        ("init", "--set", "task.verbalizer=terrible,great"),
        ("init", "--task", "reviews", "--set", "model.target_modules=q_proj,,v_proj"),
        ("export",),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_status_2(
    arguments: tuple[str, ...], sfnode: Run
) -> None:
    ended = sfnode(*arguments)
    assert ended.status == 2
    assert ended.out == ""
    assert "Error: " in ended.err


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ("cpu,,cpu", "name devices as cpu, cuda, cuda:1, mps"),
        (",".join(["cpu"] * 17), "there are 17 devices, and 16 can share the work"),
        ("cuda:1,cuda:0,cuda:1", "cuda:1 is named twice"),
        ("cuda,cuda:0", "cuda:0 is named twice"),
        ("mps,mps", "mps:0 is named twice"),
    ],
)
@pytest.mark.parametrize("command", ["join", "lab bench", "doctor"])
def test_devices_are_a_bounded_number_and_each_is_named_once(
    command: str, devices: str, says: str, sfnode: Run
) -> None:
    sfnode(*command.split(), "--device", devices).refused(f"sfnode: SF024: --device: {says}")


def test_without_a_command_the_help_is_shown(sfnode: Run) -> None:
    ended = sfnode()
    assert ended.status == 2
    assert "This machine:" in ended.out + ended.err


@pytest.mark.parametrize("arguments", [("verify",), ("export", "--out", "out"), ("eval",), ("dashboard",)])
def test_a_folder_without_a_run_is_said_to_be_one(arguments: tuple[str, ...], sfnode: Run) -> None:
    sfnode(*arguments, "--data-dir", "nothing").refused("sfnode: SF043: nothing holds no run")


def test_a_dashboard_waits_for_the_node_of_a_folder_that_has_or_will_have_one(
    sfnode: Run, tmp_path: Path
) -> None:
    """The node starts until it finds its port in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = ("dashboard", "--data-dir", tmp_path / "node", "--listen", taken.getsockname()[1])
        with open_data_dir(tmp_path / "node") as of_a_node_that_has_no_run_yet:
            assert sfnode(*command).err.startswith("sfnode: SF051: ")
            of_a_node_that_has_no_run_yet.manifest.touch()
        assert sfnode(*command).err.startswith("sfnode: SF051: ")


def test_python_m_sfnode_is_the_same_command_and_tells_its_version(sfnode: Run) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sfnode", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"sfnode, version {__version__}\n" == sfnode("--version").out


def test_a_command_of_the_lab_says_so_where_it_is_not_installed(
    sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [one for one in sys.modules if one.startswith("sflab")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "sflab", None)
    monkeypatch.setattr(cli, "commands", {})
    sfnode("lab", "bench").refused(
        "SF078: `sfnode lab` belongs to the lab", "pip install --force-reinstall sfnode"
    )
    config = tmp_path / "config.toml"
    config.write_text("dtype = 'float32'\nnothing = 3\n")
    assert "SF010" in sfnode("--config", config, "status").err, "the others read the configuration"


def test_join_alone_explains_what_a_link_is(sfnode: Run) -> None:
    sfnode("join").failed(
        "sfnode: SF010: there is no run to join: you have named none, and ",
        "sfnode join sfnode:AZMB...",
        "sfnode swarm",
    )
