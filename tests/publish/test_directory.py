"""`sfnode publish directory`: several runs on one page, whoever has written their files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.peers.contacts import MAX_FILE
from sfnode.publish.run_file import RunFile
from tests.cli.helpers import Ended
from tests.peers.test_contacts import page, web_server
from tests.publish.helpers import Page, link_to
from tests.publish.runs import manifest_of

Run = Callable[..., Ended]

EVALUATION = {
    "metric": "accuracy", "value": 0.8, "low": 0.78, "high": 0.82, "loss": 0.4, "count": 872, "epoch": 1,
    "base": False,
}  # fmt: skip
SAID: dict[str, Any] = {
    "run_id": "ab" * 32,
    "run_name": "reviews",
    "title": "Film reviews",
    "link": link_to(manifest_of()),
    "updated": datetime(2026, 11, 23, 12, tzinfo=UTC).isoformat(),
    "protocol": 2,
    "organised": True,
    "complete": False,
    "model": "opt-125m",
    "task": "classification: bad / good",
    "data": "builtin:reviews:train",
    "updates": 1234,
    "budget": 5000,
    "members": 7,
    "updates_per_hour": None,
    "seal": None,
    "digest": None,
    "quality": {
        "verdict": "better",
        "latest": EVALUATION,
        "base": EVALUATION | {"value": 0.5, "low": 0.48, "high": 0.52, "base": True},
        "best": EVALUATION,
        "calibrated": None,
    },
    "curve": [{"epoch": n, "value": 0.7 + n / 10, "low": 0.6, "high": 0.9} for n in range(2)],
    "sizes": {"log": 9, "model": None},
}


def written(folder: Path, name: str, **changes: object) -> Path:
    (folder / name).write_text(json.dumps(SAID | changes))
    return folder / name


@pytest.fixture
def directory(sfnode: Run, tmp_path: Path) -> Callable[..., tuple[Page, Ended]]:
    """Make a directory of these files; return the page, and what the command has said."""

    def make(*sources: object) -> tuple[Page, Ended]:
        ended = sfnode("publish", "directory", *sources, "--out", tmp_path / "page")
        assert ended.status == 0, ended.err
        return Page.of(tmp_path / "page" / "index.html"), ended

    return make


def test_runs_stand_there_with_their_figures_and_how_to_join(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    first = written(tmp_path, "1.json", description="Reads reviews.")
    second = written(
        tmp_path, "2.json", run_id="cd" * 32, title="Another", url="https://example.org/another/"
    )
    found, ended = directory(first, second)
    for words in (
        "Film reviews",
        "Reads reviews.",
        "80.0 %",
        "better by 30.0 points than 50.0 % before training",
        "7 members",
    ):
        assert words in found.words
    assert f"sfnode join {SAID['link']}" in found.words
    assert "sfnode join https://example.org/another/run.json" in found.words
    assert [one["href"] for one in found.named("a")] == ["https://example.org/another/"]
    assert "(2 of 2 runs)" in ended.out


def test_a_run_from_a_web_server_has_its_page_there(directory: Callable[..., tuple[Page, Ended]]) -> None:
    data = json.dumps(SAID | {"url": "https://elsewhere.example/"}).encode()
    with web_server(page(data)) as url:
        found, _ = directory(f"{url}/reviews/run.json")
    assert [one["href"] for one in found.named("a")] == [f"{url}/reviews/"]


def test_what_cannot_be_read_is_listed_without_the_folders_of_the_machine(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    sources = [
        tmp_path / "missing.json",
        "http://127.0.0.1:9/run.json",
        written(tmp_path, "x.json", run_id=""),
    ]
    found, ended = directory(*sources, written(tmp_path, "1.json"))
    for words in ("missing.json", "No such file", "http://127.0.0.1:9/run.json", "x.json", "run_id"):
        assert words in found.words
        assert words in ended.err
    assert str(tmp_path) not in found.words
    assert "(1 of 4 runs)" in ended.out


def test_of_a_run_that_is_told_of_twice_the_later_word_counts(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    early = written(tmp_path, "1.json", updated="2026-01-01T00:00:00Z", title="Early")
    found, _ = directory(written(tmp_path, "2.json", title="Late"), early)
    assert "Late" in found.words
    assert "Early" not in found.words


def test_hostile_texts_are_text(directory: Callable[..., tuple[Page, Ended]], tmp_path: Path) -> None:
    hostile = "</title><script>alert(1)</script>"
    texts = dict.fromkeys(("title", "description", "model", "task", "data"), hostile)
    found, _ = directory(written(tmp_path, "1.json", **texts))
    assert list(found.dangers()) == []
    assert hostile in found.words


def test_what_is_to_be_copied_is_for_a_shell_just_a_command(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    found, _ = directory(written(tmp_path, "1.json", url="https://example.org/~ann/a=1,b/"))
    (said,) = re.findall("sfnode join .*", found.words)
    assert shlex.split(said) == ["sfnode", "join", "https://example.org/~ann/a=1,b/run.json"]


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "javascript:alert(1)"},
        {"url": "https://nice.example/$(curl${IFS}x.example)/"},
        {"url": "https://nice.example/;id/"},
        {"url": f"https://nice.example/{'x' * 300}/"},
        {"link": 'sfnode:x" onclick="alert(1)'},
        {"title": "x" * 121},
        {"title": "\u202eesrever"},
        {"updates": -1},
        {"updates": 1 << 70},
        {"curve": [SAID["curve"][0]] * 1000},
        {"version": 2},
        {"run_name": "../../etc"},
        {"description": "x" * MAX_FILE},
    ],
)
def test_what_is_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UserError) as error:
        RunFile.parse(json.dumps(SAID | changes).encode(), "it")
    assert error.value.code is Code.BAD_RUN_FILE


def test_what_later_versions_add_is_passed_over() -> None:
    assert RunFile.parse(json.dumps(SAID | {"news": 1}).encode(), "it").title == "Film reviews"
