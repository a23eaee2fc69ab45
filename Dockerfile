# A host of the test cluster (docker-compose.yml): Python, Java, FlinkPlus and what it needs; ZooKeeper and Spark come with PySpark.
# The base by its digest: a tag may come to mean something else. For a newer one:
# docker buildx imagetools inspect python:3.12-slim-bookworm
ARG BASE=python:3.12.14-slim-bookworm@sha256:a116514e19457bcb7af7efe9c3dd0b9b71e85b317694e7882a1c52aa15a78134
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/flinkplus
# What it needs, in a layer of its own: a change of the code does not download it again.
COPY pyproject.toml requirements.lock README.md ./
RUN awk '/^setuptools==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements.lock > build.lock \
    && pip install --no-cache-dir --require-hashes -r build.lock \
    && pip install --no-cache-dir --require-hashes --no-build-isolation --use-pep517 -r requirements.lock
COPY flinkplus flinkplus
COPY pyspark_flinkplus pyspark_flinkplus
COPY chain_backup chain_backup
COPY upstream_cache upstream_cache
COPY dedup dedup
COPY experiments experiments
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .
COPY docker-compose.yml ./
COPY scripts scripts
# Nothing runs as root. The code is root's; in the working directory, as in /tmp, everybody may have files of their own. A
# new volume takes the owner of the directory that it is mounted on.
RUN useradd --create-home --uid 1000 flinkplus \
    && chmod 1777 /opt/flinkplus \
    && mkdir /mnt/flinkplus \
    && chown flinkplus: /mnt/flinkplus
USER flinkplus
