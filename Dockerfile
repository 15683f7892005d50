# The service. Its data is in /data; see docs/service.md.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY agentic_retriever agentic_retriever
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir '.[local,pdf,office,redis,postgres,service]'

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin agentic \
    && install -d -o agentic -g agentic /data
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 AGENTIC_RETRIEVER_DATA_DIR=/data
USER agentic
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v1/health/live', timeout=4)"]
ENTRYPOINT ["agentic-retriever"]
# On all addresses of the container it needs a key: docker run ... keys create NAME --role admin
CMD ["serve", "--host", "0.0.0.0"]
