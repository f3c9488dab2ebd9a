"""Hypothesis without its deadline: on a busy machine a first example takes as long as it takes."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("protocol", deadline=None)
settings.load_profile("protocol")
