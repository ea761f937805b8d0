# syntax=docker/dockerfile:1
# One image for all commands of Shoal, and one with Chromium for `shoal renderer` and `shoal bot`.
# Neither image runs as root. Both write only to the volumes /data and /logs and to /tmp, so they also work with
# `--read-only --tmpfs /tmp`. deploy/docker-bake.json builds both for amd64 and arm64.

FROM python:3.13-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /build
COPY locks ./locks
# The locks have a hash for each file. Every package is a wheel, so no compiler is needed. All extras are installed.
RUN python -m venv /opt/shoal \
    && rm locks/dev.lock \
    && for lock in locks/*.lock; do set -- "$@" -r "$lock"; done \
    && /opt/shoal/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --only-binary :all: "$@"
COPY src/shoal ./shoal
RUN mv shoal "$(/opt/shoal/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/" \
    && /opt/shoal/bin/python -m compileall -q /opt/shoal/lib \
    && printf '#!/bin/sh\nexec /opt/shoal/bin/python -P -m shoal "$@"\n' > /opt/shoal/bin/shoal \
    && chmod 755 /opt/shoal/bin/shoal

FROM python:3.13-slim-bookworm AS shoal
# The volumes belong to the group root, so that any user in that group can write to them: see HOST_UID in compose.yaml.
RUN useradd --uid 1000 --gid 0 --create-home shoal \
    && install -d -m 0770 -o 1000 -g 0 /data /logs
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SHOAL_DATA_DIR=/data \
    SHOAL_PROJECT_LOGS=/logs \
    HEALTH_URL=http://127.0.0.1:8700/healthz
WORKDIR /data
VOLUME ["/data", "/logs"]
USER 1000:0
EXPOSE 8700
# With an empty HEALTH_URL, a container is always healthy, because commands that end, such as `crawl`, have no port.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as r; (url := os.environ['HEALTH_URL']) and r.urlopen(url, timeout=4)"]
ENTRYPOINT ["shoal"]
CMD ["--help"]

FROM shoal AS chromium
USER 0
# Debian keeps only the newest security update of Chromium, so its version cannot be pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium-headless-shell fonts-liberation fonts-noto-color-emoji \
    && rm -rf /var/lib/apt/lists/*
ENV HEALTH_URL=http://127.0.0.1:3000/healthz
USER 1000:0
EXPOSE 3000
CMD ["renderer"]
