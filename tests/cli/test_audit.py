"""`sfnode audit`: whoever has a folder and the run's rows can recompute what others have said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models.manifest_builder import build
from sfnode.schema.audits import AuditResult
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfprotocol.seeds import update_seeds
from tests.cli.helpers import Ended
from tests.store.helpers import Author

Run = Callable[..., Ended]
UPDATES = 32
RUN = build({"loss": "plain"})
GROUPS = RUN.model_copy(update={"training": RUN.training.model_copy(update={"group": 8})})
HONEST, SHARDED, INVENTED = (Author(number, run_id=RUN.run_id) for number in (1, 2, 3))


def measured(author: Author, shard: tuple[int, int] | None = None, run: Manifest = RUN) -> list[int]:
    """The scalars of an author's first updates at the base model."""
    seeds = update_seeds(author.key, 0, UPDATES).tolist()
    with Trainer.load(run, shard=shard) as trainer:
        return [scalar for n in range(0, UPDATES, 8) for scalar in trainer.step(seeds[n : n + 8], 0).scalars]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a node of the built-in run with updates of three origins, that change little."""
    layout = Layout(tmp_path_factory.mktemp("audited") / "node")
    layout.path.mkdir()
    layout.manifest.write_text(RUN.to_toml())
    with UpdateLog.open(layout.log, RUN.run_id) as log:
        said = {
            HONEST: measured(HONEST),
            SHARDED: measured(SHARDED, (0, 4)),
            INVENTED: [-25, 25] * (UPDATES // 2),
        }
        log.append([author.write(scalars) for author, scalars in said.items()])
    return layout.path


def test_it_tells_who_has_measured_from_who_has_invented(folder: Path, sfnode: Run) -> None:
    ended = sfnode("audit", "--data-dir", folder, "--sample", 64, "--json")
    result = AuditResult.model_validate(json.loads(ended.out))
    found = {one.origin: one for one in result.origins}
    honest, invented = found[HONEST.feed.origin.hex()], found[INVENTED.feed.origin.hex()]
    assert (honest.finding, invented.finding) == ("confirmed", "refuted")
    assert invented.disagreement > 0.3 > 2 * honest.disagreement
    assert honest.audited > 24
    assert ended.status == 1
    assert f"SF085: the scalars of origin {INVENTED.feed.origin.hex()[:16]}" in ended.err
    assert HONEST.feed.origin.hex()[:16] not in ended.err


def test_who_trains_on_a_shard_is_confirmed_only_by_who_knows_that(folder: Path, sfnode: Run) -> None:
    chosen = ("audit", "--data-dir", folder, "--origin", SHARDED.feed.origin.hex()[:16], "--sample", 64)
    without, with_it = sfnode(*chosen), sfnode(*chosen, "--shard", "1/4")
    assert "confirmed" not in without.out
    assert "confirmed" in with_it.out
    assert (with_it.status, "SF085" in with_it.err) == (0, False)


def test_updates_of_groups_are_measured_with_their_groups(tmp_path: Path, sfnode: Run) -> None:
    layout, author = Layout(tmp_path), Author(4, run_id=GROUPS.run_id)
    layout.manifest.write_text(GROUPS.to_toml())
    with UpdateLog.open(layout.log, GROUPS.run_id) as log:
        log.append([author.write(measured(author, run=GROUPS)[:-3])])  # the last group is not complete
    ended = sfnode("audit", "--data-dir", tmp_path, "--sample", 64, "--json")
    (found,) = AuditResult.model_validate(json.loads(ended.out)).origins
    assert (found.finding, found.audited > 24) == ("confirmed", True)
    assert found.disagreement < 0.1
