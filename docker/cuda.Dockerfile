# askew on NVIDIA's GPUs, from its wheel; torch brings the CUDA libraries, the host its driver and container toolkit:
#   python -m build --wheel && docker build -f docker/cuda.Dockerfile -t askew:cuda .
#   docker run --rm --gpus all -v "$PWD:/work" askew:cuda bench mini --device cuda
FROM python:3.12-slim
# Triton compiles a launcher for its kernels.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY constraints.txt dist/askew-*.whl /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/askew-*.whl)[onnx,parquet,hub,timm]" \
 && rm /tmp/askew-*.whl /tmp/constraints.txt \
 && useradd --create-home askew
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER askew
WORKDIR /work
ENTRYPOINT ["askew"]
CMD ["--help"]
