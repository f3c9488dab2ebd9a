"""A real Prometheus for the swarm: the image that compose.yaml names, or a stand-in with Debian's own binary.

The stand-in is made like the public image as far as compose.yaml can tell: the user nobody, the configuration
in /etc/prometheus, the data in /prometheus.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.containers.docker import ROOT, build_environment, exists, pulled, run, succeeds

STAND_IN = "sfnode-test-prometheus"

_DOCKERFILE = """\
FROM {base}
COPY prometheus /bin/prometheus
RUN install -d -o nobody -g nogroup /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""


class Prometheus(NamedTuple):
    """A Prometheus that answers at an address of this machine."""

    container: str
    address: str

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]


def prometheus_image(base: str, scratch: Path) -> str:
    """Return the public image, or one made here from `base`."""
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    public = services["prometheus"]["image"].partition(":-")[2].removesuffix("}")
    if pulled(public):
        return str(public)
    if exists(STAND_IN):
        return STAND_IN
    context = scratch / "prometheus"
    context.mkdir()
    shutil.copy(_binary(scratch), context / "prometheus")
    (context / "Dockerfile").write_text(_DOCKERFILE.format(base=base))
    run("docker", "build", "-t", STAND_IN, context, env=os.environ | build_environment())
    return STAND_IN


def _binary(scratch: Path) -> str:
    """Return the program of this machine, or that of Debian's package, which needs nothing else."""
    if installed := shutil.which("prometheus"):
        return installed
    if not succeeds(
        "sh", "-c", f"cd {scratch} && apt-get download prometheus && dpkg-deb -x prometheus_*.deb ."
    ):
        pytest.skip(
            "no Prometheus: its image cannot be fetched, it is not installed, and apt-get has no such package"
        )
    return str(scratch / "usr" / "bin" / "prometheus")
