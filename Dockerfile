# One sfnode node in a container. deploy/README.md says how to run it.
#
#   docker build -t sfnode .
#
# BASE          the base image: a Debian with Python 3.11 or newer
# BUILD_BASE    the image of the build stage, if that needs more than BASE has (a package index, certificates); it
#               must have the same Python as BASE
# TORCH_INDEX   the package index for torch: PyTorch's for CPUs unless you name another one, such as
#               https://download.pytorch.org/whl/cu130 for a GPU, or nothing for the index of all other packages
#               (whose torch for x86-64 includes CUDA: gigabytes)
# TORCH_VERSION another version of torch than that of constraints/torch.txt
ARG BASE=python:3.11-slim
ARG BUILD_BASE=

FROM ${BUILD_BASE:-${BASE}} AS build
ARG TORCH_VERSION=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
RUN command -v strip > /dev/null || { apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends binutils; }
RUN python3 -m venv /opt/sfnode
COPY constraints constraints
# torch comes first, so that no other package chooses another build of it (constraints/README.md), and from its own
# index only, so that the build fails instead of installing the larger torch if that index does not answer
RUN if [ -n "$TORCH_VERSION" ]; then echo "torch==$TORCH_VERSION" > constraints/torch.txt; fi \
 && grep -v '^torch==' constraints/ci.txt > constraints/others.txt \
 && /opt/sfnode/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check \
    ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r constraints/torch.txt
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY sfnode sfnode
# nvml adds one file, which the limits `watts` and `celsius` need on a GPU
RUN /opt/sfnode/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check \
    -c constraints/torch.txt -c constraints/others.txt '.[nvml]'
COPY deploy/slim.sh deploy/slim.sh
RUN sh deploy/slim.sh /opt/sfnode
# Shows that nothing is missing, and compiles the modules that a node loads; compiling all would take 150 MB more
RUN /opt/sfnode/bin/sfnode init /tmp/run.toml --update-budget 64 < /dev/null \
 && /opt/sfnode/bin/sfnode swarm --nodes 2 --run /tmp/run.toml \
 && /opt/sfnode/bin/sfnode status --help > /dev/null

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sfnode" \
      org.opencontainers.image.description="Train a language model together over the internet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# tini is process 1 and passes SIGTERM on from the start, even while Python is still importing
RUN command -v tini > /dev/null || { apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*; }
# The user id is fixed, so that volumes outlive images. Containers of one machine exchange addresses in /shared; the
# keys of an organiser lie in /keys. The image has no machine id, since one shared by all containers would be
# useless: a node uses it to notice a copied folder.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin sfnode \
 && install -d -o sfnode -g sfnode -m 0700 /data /keys && install -d -o sfnode -g sfnode -m 0755 /shared \
 && rm -f /etc/machine-id /var/lib/dbus/machine-id
COPY --from=build /opt/sfnode /opt/sfnode
ENV PATH=/opt/sfnode/bin:$PATH HOME=/data SFNODE_DATA_DIR=/data \
    PYTHONDONTWRITEBYTECODE=1 HF_HUB_DISABLE_TELEMETRY=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 31337/tcp
STOPSIGNAL SIGTERM
# loads neither torch nor the node; the first start may have to download a model
HEALTHCHECK --interval=30s --timeout=15s --start-period=180s --retries=3 CMD ["sfnode", "status"]
ENTRYPOINT ["tini", "--", "sfnode"]
CMD ["join"]
