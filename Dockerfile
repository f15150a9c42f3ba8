# A server of the built-in encoder on a CPU, as a user without rights:
#   docker build -t decoder2vec . && docker run -p 8000:8000 decoder2vec
# Another encoder: docker run -p 8000:8000 -v ./enc:/enc decoder2vec serve /enc --host 0.0.0.0
FROM python:3.11-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# torch as pip finds it; a build for CPUs alone makes the image several gigabytes smaller
ARG TORCH=torch
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$TORCH" \
 && for wheel in /wheels/*.whl; do pip install --no-cache-dir "$wheel[serve,postgres]"; done \
 && rm -r /wheels \
 && useradd --create-home --uid 10001 d2v
USER d2v
WORKDIR /home/d2v
ENV D2V_CACHE=/home/d2v/cache
# the weights of the built-in encoder are part of the image, so that it starts without a network
RUN d2v pull smollm2-135m
EXPOSE 8000
HEALTHCHECK --start-period=60s --interval=30s --timeout=5s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["d2v"]
CMD ["serve", "--host", "0.0.0.0"]
