"""What the documentation lists is what there is: every error, every field of every JSON output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from sfnode.cli.init_questions import KINDS
from sfnode.doctor.findings import CheckFinding, Examination
from sfnode.errors import Code
from sfnode.limits import Limits
from sfnode.schema import history, organising, views
from sfnode.schema.evaluation import (
    Evaluation,
    LayerDrift,
    LayeredDrift,
    NodeEvaluation,
    PassAt,
    ProbeEvaluation,
)
from sfnode.schema.metrics import METRICS
from sfnode.schema.results import (
    ArchiveStatement,
    BatchResult,
    BenchResult,
    EvalResult,
    FitResult,
    ImportResult,
    IncomingResult,
    InviteResult,
    NodeResult,
    SealsResult,
    StatusResult,
    SwarmResult,
    TogetherResult,
    TriedAnswer,
    TryRewardResult,
    UpdateLine,
    VerifyResult,
)
from sfnode.schema.status import (
    AlarmStatus,
    DeviceStatus,
    DoingStatus,
    FetchStatus,
    GpuStatus,
    LinkStatus,
    MachineStatus,
    PrivacyStatus,
    RunStatus,
    WaitStatus,
)
from sfnode.tasks.presets import PRESETS
from sfnode.tasks.templates import FILTERS

DOCS = Path(__file__).parents[2] / "docs"

SECTIONS = {
    "status --json": (
        StatusResult,
        LinkStatus,
        FetchStatus,
        WaitStatus,
        DoingStatus,
        AlarmStatus,
        RunStatus,
        organising.ValidatorStatus,
        DeviceStatus,
        MachineStatus,
        GpuStatus,
        PrivacyStatus,
        views.FeedStatus,
    ),
    "limit --json": (Limits,),
    "verify --json": (VerifyResult, SealsResult),
    "log --json": (
        history.HistoryResult,
        history.ParentSeal,
        history.HistoryEntry,
        history.EpochEntry,
        history.OriginPart,
    ),
    "history checkout --json": (history.CheckoutResult,),
    "history diff --json": (history.DiffResult, history.LayerChange),
    "history bisect --json": (history.BisectResult, history.MeasuredState, history.Without),
    "leaderboard --json": (history.LeaderboardResult, history.Ranked, history.Remeasured),
    "history archive --json": (ArchiveStatement,),
    "history import --json": (ImportResult,),
    "log --updates": (UpdateLine,),
    "eval --json": (EvalResult, Evaluation, ProbeEvaluation, PassAt, LayeredDrift, LayerDrift),
    "organise try-reward --json": (TryRewardResult, TriedAnswer),
    "invite --json": (InviteResult,),
    "organise status --json": (
        organising.OrganiserStatus,
        organising.EvidenceStatus,
        organising.HealthStatus,
        organising.EpochEvaluation,
    ),
    "organise members --json": (organising.MemberStatus, organising.PetitionStatus),
    "organise admit --json": (organising.DecisionResult, organising.Change),
    "organise hand-over": (organising.SuccessionFile, organising.DeputyVote),
    "swarm --json": (SwarmResult, NodeResult),
    "doctor --json": (Examination, CheckFinding),
    "GET /views/progress": (views.Progress,),
    "GET /views/curves": (views.Curves, NodeEvaluation),
    "GET /views/swarm": (views.Swarm, views.SwarmNode, views.SwarmEdge),
    "GET /views/about": (views.About,),
    "GET /views/own": (views.OwnStanding,),
    "GET /views/samples": (views.Samples, views.SampleRow, views.SampleMoment),
    "GET /views/timeline": (views.Timeline, views.TimelineEntry),
    "GET /views/feeds": (views.Feeds,),
    "GET /views/origins": (views.Origins, views.Origin, views.Team),
    "GET /views/history": (views.History, views.HistoryPoint, views.Leader),
    "POST /generate": (views.Generated,),
    "lab bench --json": (BenchResult, BatchResult, IncomingResult, FitResult, TogetherResult),
}


def sections(name: str) -> dict[str, str]:
    """The text under each second-level heading of a page, by the heading."""
    _, *parts = re.split(r"^## ", (DOCS / name).read_text(), flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def test_every_error_has_an_entry_and_every_entry_is_an_error() -> None:
    assert list(sections("errors.md")) == [f"SF{code:03d} {code.name}" for code in Code]


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_an_entry_says_something(code: Code) -> None:
    assert len(sections("errors.md")[f"SF{code:03d} {code.name}"].split()) >= 15


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_field_of_a_json_output_is_documented_in_its_order(heading: str) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", sections("json.md")[heading], flags=re.MULTILINE)
    documented = [re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE) for table in tables]
    models: tuple[type[BaseModel], ...] = SECTIONS[heading]
    assert documented == [list(model.model_fields) for model in models]


def test_every_ready_made_task_every_kind_every_filter_and_every_metric_is_documented() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (DOCS / "tasks.md").read_text(), flags=re.MULTILINE)
    documented = [re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE) for table in tables]
    assert documented == [list(PRESETS), list(KINDS), list(FILTERS), list(METRICS)]
