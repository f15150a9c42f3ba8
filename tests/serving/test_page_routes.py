"""The routes of the page, the sweep and the metrics."""

from __future__ import annotations

import httpx
import pytest

from decoder2vec.serving.page_routes import PAGE_FOLDER


def test_sweep_is_returned_as_it_was_written(client):
    assert client.get("/sweep").json() == {"rows": [1, 2]}


def test_missing_sweep_is_a_404(serving):
    with serving() as url, httpx.Client(base_url=url) as client:
        response = client.get("/sweep")
        assert response.status_code == 404 and "start it with --sweep" in response.json()["error"]["message"]


def test_page_has_a_strict_content_security_policy(client):
    for path in ("/", "/page/index.html"):
        response = client.get(path)
        assert response.status_code == 200 and response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["content-security-policy"].startswith("default-src 'self';")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.content == (PAGE_FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("path", ["/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/", "/docs"])
def test_no_other_file_is_served(client, path):
    response = client.get(path)
    assert response.status_code == 404 and set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_metrics_count_requests_by_route_and_never_by_url(client):
    client.get("/v1/models/no-such-model")
    client.get("/some/secret/address")
    text = client.get("/metrics").text
    assert 'd2v_requests_total{route="/v1/models/{name}",status="404"}' in text.replace("{name:path}", "{name}")
    assert "secret" not in text and "no-such-model" not in text
    for name in ("d2v_queue_tokens", "d2v_texts_total", "d2v_cache_hits_total", "d2v_request_seconds_bucket"):
        assert name in text


def test_page_and_reports_share_one_theme(client):
    from decoder2vec.report.html import STYLE

    assert 'href="page/theme.css"' in client.get("/").text
    theme = client.get("/page/theme.css")
    assert theme.headers["content-type"].startswith("text/css") and STYLE.startswith(theme.text)
