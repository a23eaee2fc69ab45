# A host of the test cluster (docker-compose.yml): Python, Java, FlinkPlus and what it needs; ZooKeeper and Spark come with PySpark.
FROM python:3.12-slim-bookworm
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
COPY chain_backup chain_backup
COPY upstream_cache upstream_cache
COPY dedup dedup
COPY experiments experiments
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .
COPY docker-compose.yml ./
COPY scripts scripts
