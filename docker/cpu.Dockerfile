# askew on a CPU, from its wheel:
#   python -m build --wheel && docker build -f docker/cpu.Dockerfile -t askew:cpu .
#   docker run --rm -v "$PWD:/work" askew:cpu adapt photos/ sketches/ -o out
FROM python:3.12-slim
COPY constraints.txt dist/askew-*.whl /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt --index-url https://download.pytorch.org/whl/cpu torch torchvision \
 && pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/askew-*.whl)[onnx,parquet,hub]" \
 && rm /tmp/askew-*.whl /tmp/constraints.txt \
 && useradd --create-home askew
USER askew
WORKDIR /work
ENTRYPOINT ["askew"]
CMD ["--help"]
