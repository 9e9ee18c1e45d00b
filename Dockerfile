# docker build -t kafka-sidecar .          docs/deployment.md has the commands to run it
#
# The base is a name, not a digest: a digest names one processor's image or goes stale with each security update. Pin
# what you have scanned: --build-arg BASE=docker.io/library/python@sha256:...
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
# One environment builds, the other is the product and has neither pip nor setuptools.
RUN python -m venv /opt/build \
    && python -m venv --without-pip /opt/kafka-sidecar
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY sidecar sidecar
COPY client_stub client_stub
COPY pyspark_kafka_sidecar pyspark_kafka_sidecar
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/kafka-sidecar/bin/python install --no-cache-dir \
        "$(echo /wheels/kafka_sidecar-*.whl)[daemon]"
# The extensions are optional in the distribution; in an image their absence is a broken build.
# -I: not the sources in this folder, which are not built.
RUN /opt/kafka-sidecar/bin/python -I -c "import sidecar.kernel._kernel, client_stub.native._native"

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kafka-sidecar" \
      org.opencontainers.image.description="A Kafka producer for every process on a host: nothing accepted is lost." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/kafka-sidecar/kafka-sidecar" \
      org.opencontainers.image.documentation="https://github.com/kafka-sidecar/kafka-sidecar/tree/main/docs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Numbers, so that runAsNonRoot can be checked and clients know which group to join.
RUN groupadd --gid 10001 kafka-sidecar \
    && useradd --uid 10001 --gid 10001 --home-dir /run/kafka-sidecar --no-create-home --shell /usr/sbin/nologin \
        kafka-sidecar \
    && install --directory --owner=10001 --group=10001 --mode=0750 /run/kafka-sidecar \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/kafka-sidecar
COPY --from=build /opt/kafka-sidecar /opt/kafka-sidecar
# /dev/shm goes with its container, and accepted records would go with it: the pool and dead letters are on a volume.
# http.listen: a container's loopback is nobody's; `-p 127.0.0.1:9464:9464` decides who can reach it.
# Variables stand above a configuration file; `-X` and another value of the variable stand above them.
ENV PATH=/opt/kafka-sidecar/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    KAFKA_SIDECAR_RUN_DIR=/run/kafka-sidecar \
    KAFKA_SIDECAR__POOL__PATH=/var/lib/kafka-sidecar/pool \
    KAFKA_SIDECAR__DEAD_LETTERS__PATH=/var/lib/kafka-sidecar/dead-letters \
    KAFKA_SIDECAR__HTTP__LISTEN=0.0.0.0:9464
USER 10001:10001
VOLUME ["/run/kafka-sidecar", "/var/lib/kafka-sidecar"]
EXPOSE 9464
STOPSIGNAL SIGTERM
# Healthy while records are accepted, also while Kafka is away: they wait in the pool, and a restart would not help.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
    CMD ["kafka-sidecar", "status", "--alive"]
ENTRYPOINT ["kafka-sidecar"]
CMD ["run"]
