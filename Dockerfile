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
# EXTRAS        extras of sfnode: nvml adds one file, which the limits `watts` and `celsius` need on a GPU; datasets
#               reads data sets of the hub and Parquet files
ARG BASE=python:3.11-slim
ARG BUILD_BASE=

# What is installed besides sfnode: the rest of pyproject.toml may change, and the layer with it stays
FROM ${BUILD_BASE:-${BASE}} AS requirements
ARG EXTRAS="nvml datasets"
COPY pyproject.toml .
RUN python3 -c "import tomllib; of = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [one for extra in '$EXTRAS'.split() for one in of['optional-dependencies'][extra]]; \
print(*of['dependencies'], *extras, sep='\n')" > /requirements.txt

FROM ${BUILD_BASE:-${BASE}} AS dependencies
ARG TORCH_VERSION=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
RUN command -v strip > /dev/null || { apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends binutils; }
RUN python3 -m venv /opt/pip
COPY constraints constraints
COPY deploy/slim.sh deploy/slim.sh
COPY --from=requirements /requirements.txt .
# torch comes first, so that no other package chooses another build of it (constraints/README.md), and from its own
# index only, so that the build fails instead of installing the larger torch if that index does not answer. One
# layer: what is removed and stripped at its end is never written to the disk of the engine. The imports compile most
# of what a node loads of the dependencies.
RUN if [ -n "$TORCH_VERSION" ]; then echo "torch==$TORCH_VERSION" > constraints/torch.txt; fi \
 && grep -v '^torch==' constraints/ci.txt > constraints/others.txt \
 && python3 -m venv --without-pip /opt/sfnode \
 && pip="/opt/pip/bin/pip --python /opt/sfnode --disable-pip-version-check" \
 && $pip install --no-cache-dir --no-compile ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r constraints/torch.txt \
 && $pip install --no-cache-dir --no-compile -c constraints/torch.txt -c constraints/others.txt -r requirements.txt \
 && sh deploy/slim.sh /opt/sfnode \
 && /opt/sfnode/bin/python -c "import hivemind, transformers.models.opt.modeling_opt as _, transformers.generation as _"

FROM dependencies AS build
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY sfnode sfnode
COPY sflab sflab
# A small swarm shows that nothing is missing, and compiles what else a node loads; compiling all would take 150 MB
# more. What this adds to the dependencies goes to /own.
RUN touch /before \
 && /opt/pip/bin/pip --python /opt/sfnode --disable-pip-version-check install --no-cache-dir --no-compile --no-deps . \
 && /opt/sfnode/bin/sfnode init --task reviews --out /tmp/run.toml --set training.update_budget=64 \
 && /opt/sfnode/bin/sfnode swarm --nodes 2 --run /tmp/run.toml \
 && /opt/sfnode/bin/sfnode status --help > /dev/null \
 && mkdir /own && cd / && find opt/sfnode -type f -cnewer /before -print0 | tar --null -T - -cf - | tar -C /own -xf -

FROM ${BASE}
ARG VERSION=0.3.0
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
COPY --from=dependencies /opt/sfnode /opt/sfnode
COPY --from=build /own /
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
