# CPU:   docker build -t rncdl .
# CUDA:  docker build -t rncdl --build-arg TORCH_INDEX=https://pypi.org/simple .
# Try:   docker run --rm -v "$PWD:/work" rncdl prepare shapes world
FROM python:3.12-slim

# Where torch and torchvision come from. PyPI's own builds for Linux hold CUDA's libraries; the host
# then needs NVIDIA's driver and container toolkit, and `docker run --gpus all`.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /opt/rncdl
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY rncdl rncdl
RUN pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" \
        --extra-index-url https://pypi.org/simple torch torchvision \
    && pip install --no-cache-dir -c constraints.txt ".[demo]"

# The folder with your images is mounted here; run folders are written beside them.
WORKDIR /work
ENTRYPOINT ["rncdl"]
