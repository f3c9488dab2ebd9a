"""The fuzz targets themselves: their seeds are valid, and failed inputs can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import target


@pytest.mark.parametrize("name", sorted(target.targets()))
def test_no_seed_of_a_target_goes_wrong(name: str) -> None:
    play, seeds = target.targets()[name]
    assert seeds()
    for seed in seeds():
        play(seed)


def test_an_input_that_fails_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(data: bytes) -> None:
        if len(data) > 100:
            raise ZeroDivisionError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, "targets", lambda: {"broken": (breaks, lambda: [b"seed"])})
    with pytest.raises(SystemExit, match=r"play it again with: .* broken --play "):
        target.by_chance("broken", 60, 1)
    [kept] = (tmp_path / target.FAILURES).iterdir()
    with pytest.raises(ZeroDivisionError):
        breaks(kept.read_bytes())
