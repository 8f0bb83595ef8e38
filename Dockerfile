# chaoslab's image: of the agents and the store on every engine, of the lab in docker-compose.yml, and
# of training jobs that need no more than torch.
#
#   docker build -t chaoslab:0.1.0 .
#
# On your own base, which may have a torch of its own (then that one is kept):
#
#   docker build --build-arg BASE_IMAGE=my/training:latest -t chaoslab:0.1.0 .
#
# Without network: put the wheels into wheels/ (`pip wheel -c constraints.txt -w wheels . hatchling`), and
# add --build-arg NO_INDEX=1. The base then has to have Python 3.11 or newer with venv.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG NO_INDEX=
ENV PATH=/opt/chaoslab/bin:$PATH PYTHONDONTWRITEBYTECODE=1

USER root
COPY . /opt/chaoslab-src
RUN set -eu; cd /opt/chaoslab-src; \
    python3 -c 'import ensurepip, venv' 2>/dev/null || { \
        apt-get update; \
        apt-get install -y --no-install-recommends python3 python3-venv; \
        rm -rf /var/lib/apt/lists/*; \
    }; \
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
        echo "BASE_IMAGE has $(python3 --version): want Python 3.11 or newer" >&2; exit 1; \
    }; \
    python3 -m venv --system-site-packages /opt/chaoslab; \
    pins=constraints.txt; \
    if python -c 'import torch' 2>/dev/null; then \
        grep -v -e '^torch==' -e '^numpy==' constraints.txt >/tmp/pins; pins=/tmp/pins; \
    fi; \
    python -m pip install --no-cache-dir --no-compile --disable-pip-version-check \
        ${NO_INDEX:+--no-index} --find-links wheels --extra-index-url "$TORCH_INDEX" \
        --constraint "$pins" .; \
    rm -rf /opt/chaoslab-src /tmp/pins

WORKDIR /work
CMD ["chaoslab", "--help"]
