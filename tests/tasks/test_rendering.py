"""Tests of chat templates, which are strangers' programs: they render, or they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from sfnode import bounded_process
from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code
from sfnode.tasks.chat import PROGRAM, TemplateRefusal, render
from sfnode.tasks.template_process import LONGEST
from tests.refusals import fails_with

MEMORY = 256 << 20
PLAIN = "{% for m in messages %}{{ m.content }};{% endfor %}"
TALK = {"messages": [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Four."}]}
DOUBLED = (
    "{% set kept = namespace(text='a' * 1000) %}"
    "{% for _ in range(99) %}{% set kept.text = kept.text ~ kept.text %}{% endfor %}"
)
ENDLESS = "{% for a in range(99999) %}" * 9 + "{% endfor %}" * 9


@pytest.fixture(scope="module")
def renderer() -> Iterator[BoundedProcess]:
    made = BoundedProcess(PROGRAM, 0.3, MEMORY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[BoundedProcess]:
    """Yield a process with time to fill memory, and to write 16 MiB, on a slow machine."""
    made = BoundedProcess(PROGRAM, 60, MEMORY)
    yield made
    made.close()


def broken(renderer: BoundedProcess, template: str) -> str:
    """Return the reason why a template cannot be used. The next one can."""
    with fails_with(Code.MODEL_UNSAFE) as caught:
        render(template, TALK, renderer)
    assert render(PLAIN, TALK, renderer) == "Two?;Four.;"
    return caught.value.what


@pytest.mark.parametrize(
    "template",
    [
        ENDLESS,
        "{% macro two(n) %}{% if n %}{{ two(n - 1) ~ two(n - 1) }}{% endif %}{% endmacro %}{{ two(50) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% if messages[1].content == 'Four.' %}" + ENDLESS + "{% endif %}",
    ],
    ids=[
        "loops in loops",
        "a macro that calls itself twice",
        "a number without end",
        "for one conversation only",
    ],
)
def test_a_template_without_end_is_stopped(renderer: BoundedProcess, template: str) -> None:
    assert "it takes more time than it may" in broken(renderer, template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 11 }}",
        "{{ 'a'.ljust(10 ** 11) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ [0] * 10 ** 11 }}",
        DOUBLED,
        "{% set kept %}{% for _ in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
    ],
)
def test_a_template_that_takes_all_memory_is_stopped(patient: BoundedProcess, template: str) -> None:
    assert "it takes more memory than it may" in broken(patient, template)


def test_memory_is_watched_where_the_system_keeps_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS does not limit a process's memory."""
    start = bounded_process._start
    monkeypatch.setattr(bounded_process, "_start", lambda program, *_: start(program, 60, MEMORY << 10, 0))
    renderer = BoundedProcess(PROGRAM, 60, 64 << 20)
    assert "it takes more memory than it may" in broken(renderer, "{% set a = 'a' * 200000000 %}" + ENDLESS)
    renderer.close()


def test_a_text_that_no_model_reads_is_refused(patient: BoundedProcess) -> None:
    assert "writes more than" in broken(patient, f"{{{{ 'a' * {LONGEST + 1} }}}}")
    assert len(render(f"{{{{ 'a' * {LONGEST} }}}}", TALK, patient)) == LONGEST


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for %}", "Expected an expression"),
        ("{{ nothing.at_all }}", "undefined"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set x = namespace(_Namespace__attrs=1) %}", "no attribute"),
        ("{{ open('/etc/passwd') }}", "undefined"),
        (7, "compile"),
    ],
)
def test_a_template_that_refuses_says_why(renderer: BoundedProcess, template: Any, reason: str) -> None:
    with pytest.raises(TemplateRefusal, match=reason):
        render(template, TALK, renderer)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{% for m in messages %}\n{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            "Two?Four.",
        ),
        ("  {% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "user"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Two?"}'),
        ("{{ {'ö': 1} | tojson(indent=1) }}", '{\n "ö": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 2025"),
        ("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ dict(b=n.a).b }}", "22"),
    ],
)
def test_templates_find_what_they_are_written_for(renderer: BoundedProcess, template: str, text: str) -> None:
    assert render(template, TALK, renderer) == text


def test_threads_get_their_own_texts(renderer: BoundedProcess) -> None:
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda n: render("{{ n }}", {"n": n}, renderer), range(200)))
    assert texts == [str(n) for n in range(200)]


def test_the_process_ends_with_the_program_that_asks_however_that_ends() -> None:
    script = (
        "from sfnode.tasks.chat import PROCESS, render\n"
        "render('', {})\n"
        "print(PROCESS._process.pid, flush=True)\n"
        "input()\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for asking, number in zip(started, (signal.SIGKILL, signal.SIGTERM, None), strict=True):
        assert asking.stdout
        rendering_process = psutil.Process(int(asking.stdout.readline()))
        if number:
            os.kill(asking.pid, number)
        asking.communicate("\n")
        assert rendering_process.wait(30) is None
