# docker build -t kafka-sidecar .    then: docker run --init --shm-size=512m kafka-sidecar run -X bootstrap.servers=...
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/kafka-sidecar
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY sidecar sidecar
COPY client_stub client_stub
COPY pyspark_kafka_sidecar pyspark_kafka_sidecar
RUN /opt/kafka-sidecar/bin/pip install --no-cache-dir ".[daemon]" \
    # The extensions are optional in the distribution; in an image their absence is a broken build.
    && /opt/kafka-sidecar/bin/python -c "import sidecar.kernel._kernel, client_stub._native"

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /run/kafka-sidecar --shell /usr/sbin/nologin kafka-sidecar \
    && install --directory --owner=kafka-sidecar --group=kafka-sidecar --mode=0750 /run/kafka-sidecar /var/lib/kafka-sidecar
COPY --from=build /opt/kafka-sidecar /opt/kafka-sidecar
ENV PATH=/opt/kafka-sidecar/bin:$PATH \
    KAFKA_SIDECAR_RUN_DIR=/run/kafka-sidecar \
    PYTHONUNBUFFERED=1
USER kafka-sidecar
VOLUME /run/kafka-sidecar
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["kafka-sidecar", "status"]
ENTRYPOINT ["kafka-sidecar"]
CMD ["run"]
