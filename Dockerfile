# netbench in a container: `docker build -t netbench .`, then `docker run --rm -it netbench`.
#
# The guest kernel is built into the image. It runs in user space and needs no privilege, but memory
# that is executable, which Docker's own /dev/shm is not: docs/install.md has the options of a run.
FROM debian:bookworm-slim

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive \
    PATH=/opt/netbench/.venv/bin:$PATH

# What `make` and `netbench doctor --install run` would install; versions are those of Debian.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        bc bison ca-certificates flex gcc git iproute2 iputils-ping libc6-dev linux-source-6.12 m4 \
        make patch python3 python3-venv tar util-linux xz-utils \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/netbench
COPY . .
RUN make setup compiled guest-kernel

# Runs and their records go to the folder that is mounted here.
WORKDIR /work
CMD ["netbench", "run", "case3"]
