"""A real Prometheus for the swarm: the image that compose.yaml names, or a stand-in with Debian's own binary.

The stand-in is made like the public image as far as compose.yaml can tell: the user nobody, the configuration
in /etc/prometheus, the data in /prometheus.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from tests.containers.docker import ROOT, build_environment, exists, pulled, run
from tests.processes.prometheus import programs

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
    shutil.copy(programs(scratch) / "prometheus", context)
    (context / "Dockerfile").write_text(_DOCKERFILE.format(base=base))
    run("docker", "build", "-t", STAND_IN, context, env=os.environ | build_environment())
    return STAND_IN
