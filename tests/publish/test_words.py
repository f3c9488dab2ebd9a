"""Tests of the words on screens of volunteers: plain words, and no share above 100 %.

Precise terms appear with --details, with --json, and in files for programs. `CARDS` has the screens of join.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfnode.cli import evaluate, progress, swarm
from sfnode.dashboard.frame import Shown, frame
from sfnode.dashboard.quality import quality
from sfnode.dashboard.server import STATIC, now_in_words
from sfnode.dashboard.snapshot import contributed, look_at_all
from sfnode.defaults import DATA_DIR
from sfnode.publish.directory import directory_page
from sfnode.schema.measurements import Drift, Evaluation, LayeredDrift, ProbeEvaluation
from sfnode.schema.node_state import NodeState, Wait
from sfnode.schema.organising import EvidenceStatus
from sfnode.schema.results import EvalResult
from sfnode.schema.status import DeviceStatus, DoingStatus, FetchStatus, Status, WaitStatus
from tests.cli.fake_node import ANSWERS, fake_node
from tests.cli.helpers import Run
from tests.dashboard.example import SEALED, ExampleNode, RewardedNode
from tests.publish.helpers import Page
from tests.schema.helpers import organised, status

FORBIDDEN = re.compile(
    r"\b(nats?|priors?|seal(s|ed|ing)?|epochs?|factors?|evidence|digests?|cores?|frontiers?|incarnations?|"
    r"quotas?|scalars?|subspaces?|bas[ei]s)\b",
    re.IGNORECASE,
)
"""Technical terms that volunteers need not know."""

PERCENT = re.compile(r"(\d[\d.,]*) ?%")

EVIDENCE = EvidenceStatus(
    member=3, origin="ab" * 32, updates=99, worth=-10**7, evidence=-3.2, bound=1.0, counts_at_last=False,
    agreement=-0.2, outlier_share=0.5, skipped=True, harmful_since=None,
)  # fmt: skip
EVERYTHING: dict[str, Any] = organised(
    announced="Welcome.", evidence=EVIDENCE, behind=7, organiser="signing", sealed=13
)
BUSY = status(
    **EVERYTHING, role="trainer", state=NodeState.TRAINING, run_name="films", known=900, update_budget=1000,
    contributed=90, own_updates=45, updates_per_second=1.5, loss=0.41, uptime=7501.0, origin="ab" * 32,
    drift=Drift(norm=1.0, distance=1.7, kl=0.003, tokens=9), epoch=13, epochs=9, seconds_left=7501.0,
    fetch=FetchStatus(what="bases", done=1, total=2, peers=3),
    wait=WaitStatus(reason=Wait.BASES, text="the published directions of training are not here yet"),
    doing=DoingStatus(what="measuring round 3", seconds=75.0),
    devices=[DeviceStatus(name=f"cuda:{n}", updates=9, seconds=0.1, problem=None) for n in range(2)],
)  # fmt: skip
"""Status of a node in which every optional field is set."""


SOURCE = Path(evaluate.__file__).parents[1]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a node that answers."""
    answers = {"GET /status": BUSY.model_dump_json()}
    with fake_node(tmp_path / "running", {**ANSWERS, **answers}):
        yield tmp_path / "running"


def check(text: str) -> None:
    """Require that a text has no forbidden word, and no share above 100 %."""
    assert text.strip()
    found = [text[max(0, one.start() - 40) : one.end() + 20] for one in FORBIDDEN.finditer(text)]
    assert found == []
    assert [one for one in PERCENT.findall(text) if float(one.replace(",", "")) > 100] == []


KEPT = ("log", "leaderboard", "leaderboard --recompute", "verify", "list", "status", "invite", "leave")


@pytest.mark.parametrize("command", ["status", "limit", "pause", "resume", "invite --no-qr"])
def test_what_is_said_of_a_node_that_runs_is_plain(command: str, sfnode: Run, node: Path) -> None:
    ended = sfnode(*command.split(), "--data-dir", node).done()
    check(ended.out + ended.err)


@pytest.mark.parametrize("command", KEPT)
def test_what_is_said_of_a_folder_is_plain(command: str, sfnode: Run, folder: Path) -> None:
    where = () if command == "list" else ("--data-dir", folder)
    ended = sfnode(*command.split(), *where)
    check((ended.out + ended.err).replace("Bases were made anew", ""))  # the organiser's own words


@pytest.mark.parametrize(
    ("command", "terms"),
    [
        ("status", ["digest", "epoch", "quota", "evidence", "nats"]),
        ("log", ["factor", "rate", "digest"]),
        ("leaderboard", ["nats"]),
        ("verify", ["named digest", "core digest"]),
    ],
)
def test_the_precise_terms_are_there_for_who_asks(
    command: str, terms: list[str], sfnode: Run, folder: Path, node: Path
) -> None:
    ended = sfnode(command, "--details", "--data-dir", node if command == "status" else folder)
    assert [term for term in terms if term not in ended.out] == []


@pytest.mark.parametrize("state", NodeState)
async def test_the_frames_of_top_and_the_answers_of_the_dashboard_are_plain(state: NodeState) -> None:
    for example in (ExampleNode(), RewardedNode()):
        now, curves = await look_at_all(example)  # type: ignore[arg-type] # it answers as a client does
        now = now._replace(status=BUSY.model_copy(update={"state": state, "machine": now.status.machine}))
        shown = Shown(now, curves, await example.origins(), "", SEALED, await example.standing())
        check("\n".join(line.plain for size in ((80, 24), (200, 60)) for line in frame(shown, *size)))
        said = now_in_words(now)
        own = contributed(now.status, await example.standing()).text
        check(
            " ".join(
                [said["doing"].text, said["together"].text, said["moved"], own, *map(str, said["alarms"])]
            )
        )
        check(quality(now.status, [], SEALED).headline.text)


@pytest.mark.parametrize("file", sorted(STATIC.glob("*.*")), ids=lambda file: file.name)
def test_the_files_of_the_dashboard_have_no_other_words(file: Path) -> None:
    if file.suffix == ".html":
        page = Page(file.read_text())
        check(page.words + " ".join(one.get("title", "") for _, one in page.elements))
    elif file.suffix == ".js":  # what it writes: texts with a space, less what is computed within them
        code = re.sub(r"//.*|/\*[\s\S]*?\*/|\$\{[^{}]*\}", "", file.read_text())
        check(" ".join(one for one in re.findall(r'"[^"\n]*"|`[^`]*`', code) if " " in one) or "none")


def test_a_published_page_and_a_directory_are_plain(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    assert sfnode("publish", "page", "--out", tmp_path / "page", "--data-dir", folder).status == 0
    check(Page.of(tmp_path / "page" / "index.html").words.replace("Bases were made anew", ""))
    page, unread = directory_page([str(tmp_path / "page" / "run.json")], "Runs", datetime.now(UTC))
    assert not unread
    check(Page(page).words)


def test_what_eval_prints_is_plain() -> None:
    scores = {name: getattr(SEALED[9], name) for name in Evaluation.model_fields}
    result = EvalResult(
        run_id="ab", updates=9, digest="ab" * 32, seal=3, before=SEALED[0], calibrated=SEALED[1],
        after=SEALED[9], loss="plain", prior=None,
        drift=LayeredDrift(norm=1.0, distance=0.2, kl=0.1, tokens=9, layers=[]),
        probe=ProbeEvaluation(**scores, rows=99, lead=0.2, error=0.01),
    )  # fmt: skip
    check("\n".join(evaluate._lines(result, "after round 3, 9 updates", False, DATA_DIR)))


def told(call: ast.Call) -> str:
    """Yield the texts in a call."""
    constants = (part.value for part in ast.walk(call) if isinstance(part, ast.Constant))
    return " ".join(value for value in constants if isinstance(value, str))


def calls(folder: str, *names: str) -> Iterator[str]:
    """Yield the texts that the modules of a folder pass to these functions."""
    for file in sorted((SOURCE / folder).rglob("*.py")):
        for part in ast.walk(ast.parse(file.read_text())):
            if isinstance(part, ast.Call) and ast.unparse(part.func) in names:
                yield told(part)


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("", ("log.info", "log.warning", "log.error", "begins")),
        ("", ("WaitStatus", "Words")),
        ("doctor", ("ok", "note", "problem")),
    ],
)
def test_lines_of_the_log_waits_and_findings_are_plain(folder: str, names: tuple[str, ...]) -> None:
    for said in calls(folder, *names):
        check(f"{said} .")


CARDS: dict[str, Callable[[Status], str]] = {
    "what a node waits for": lambda s: " ".join(progress.doing(s)),
    "a line of a swarm": lambda s: swarm.progress_line([s]),
}
"""Screens of `join` and `swarm`, from a status."""


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("state", NodeState)
def test_the_screens_of_join_are_plain(card: str, state: NodeState) -> None:
    check(f"{state.value} {CARDS[card](BUSY.model_copy(update={'state': state}))}")
