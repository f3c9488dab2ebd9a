"""`sfnode doctor` as a command: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import socket

from sfnode.peers.invitations import compose
from sfprotocol import invitation
from tests.cli.helpers import Run


def test_a_problem_is_shown_with_its_number_cause_and_fix_and_is_the_exit_status(sfnode: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        maddr = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        ended = sfnode("doctor", "--ntp", "none", "--host-maddrs", maddr)
    assert ended.status == 1
    shown = ended.out.splitlines()
    index = next(number for number, line in enumerate(shown) if "SD040" in line)
    assert shown[index].startswith(f"problem  SD040  {maddr} is in use by ")
    assert f"process {os.getpid()}" in shown[index]
    assert "--host-maddrs" in shown[index + 1]
    assert shown[-1].startswith("1 problem (")


def test_its_json_is_an_object_and_without_a_problem_the_exit_status_is_0(sfnode: Run) -> None:
    ended = sfnode("doctor", "--ntp", "none", "--json").done()
    answer = json.loads(ended.out)
    assert answer["problems"] == 0
    numbers = [one["number"] for one in answer["findings"]]
    assert numbers == sorted(numbers)
    assert {"SD010", "SD020", "SD021", "SD030", "SD031", "SD040", "SD043"} <= set(numbers)
    assert all(one["fix"] for one in answer["findings"] if one["verdict"] != "ok")


def test_the_peers_of_an_invitation_are_visited(sfnode: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    peer = f"/ip4/127.0.0.1/tcp/{port}/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
    ended = sfnode(
        "doctor", "--link", invitation.write(compose(bytes(32), [peer], ())), "--ntp", "none"
    ).failed()
    assert f"problem  SD052  {peer}: the machine is there" in ended.out
