# syntax=docker/dockerfile:1
# One image for all commands of Shoal, and one with Chromium for `shoal renderer` and `shoal bot`.
# Neither runs as root, and neither writes anywhere but to the volumes at /data and /logs, and to /tmp.

FROM python:3.13-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /build
COPY requirements.lock requirements-content.lock ./
# The lock has a hash for each file, and every package is a wheel: no compiler is needed.
RUN python -m venv /opt/shoal \
    && /opt/shoal/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --only-binary :all: -r requirements.lock -r requirements-content.lock
COPY src/shoal ./shoal
RUN mv shoal "$(/opt/shoal/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/" \
    && /opt/shoal/bin/python -m compileall -q /opt/shoal/lib \
    && printf '#!/bin/sh\nexec /opt/shoal/bin/python -P -m shoal "$@"\n' > /opt/shoal/bin/shoal \
    && chmod 755 /opt/shoal/bin/shoal

FROM python:3.13-slim-bookworm AS shoal
# The group of the volumes is root's, so that any user of that group can write them: see HOST_UID in compose.yaml.
RUN useradd --uid 1000 --gid 0 --create-home shoal \
    && install -d -m 0770 -o 1000 -g 0 /data /logs
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SHOAL_DATA_DIR=/data \
    SHOAL_PROJECT_LOGS=/logs
WORKDIR /data
USER 1000:0
EXPOSE 8700
ENTRYPOINT ["shoal"]
CMD ["--help"]

FROM shoal AS chromium
USER 0
# Debian keeps only the newest security update of Chromium, so its version cannot be pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium-headless-shell fonts-liberation fonts-noto-color-emoji \
    && rm -rf /var/lib/apt/lists/*
USER 1000:0
EXPOSE 3000
CMD ["renderer"]
