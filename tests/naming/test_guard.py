"""Hostile requests are refused, and change nothing."""

import http.client
import json
import re
import socket

import pytest

from tests.naming.served import TOKEN, Site

NAME = json.dumps({"seen": 0, "clusters": [0], "name": "mug"}).encode()
DECIDE = f"/{TOKEN}/api/decide/name"


def post(site: Site, path: str = DECIDE, body: bytes = NAME, **headers: str) -> int:
    usual = {"Origin": f"http://{site.host}", "Content_Type": "application/json"}
    return site.send("POST", path, body=body, **{**usual, **headers})[0]


def test_the_page_itself_may_do_all_of_it(site: Site):
    assert site.send("GET", f"/{TOKEN}/")[0] == 200
    assert post(site) == 200
    assert site.board.store.version() == 1


@pytest.mark.parametrize("path", ["/", "/api/state", "/wrong/", "/wrong/api/state", f"/{TOKEN}x/"])
def test_without_the_token_nothing_is_shown(site: Site, path: str):
    assert site.send("GET", path)[0] == 403


def test_without_the_token_nothing_is_decided(site: Site):
    assert post(site, "/api/decide/name") == 403
    assert post(site, "/wrong/api/decide/name") == 403
    assert site.board.store.version() == 0


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", ""])
def test_other_origins_are_refused(site: Site, origin: str):
    assert post(site, Origin=origin) == 403
    assert site.send("GET", f"/{TOKEN}/api/state", Origin=origin)[0] == 403
    assert site.board.store.version() == 0


def test_a_decision_without_an_origin_is_refused(site: Site):
    status, _ = site.send("POST", DECIDE, body=NAME, Content_Type="application/json")
    assert status == 403
    assert site.board.store.version() == 0


def test_a_name_bent_to_this_machine_is_refused(site: Site):
    assert site.send("GET", f"/{TOKEN}/", Host="evil.example")[0] == 403
    status = post(site, Host="evil.example", Origin="http://evil.example")
    assert status == 403
    assert site.board.store.version() == 0


def test_forms_of_other_pages_cannot_decide(site: Site):
    assert post(site, Content_Type="text/plain") == 415
    assert post(site, Content_Type="application/x-www-form-urlencoded") == 415
    assert site.board.store.version() == 0


@pytest.mark.parametrize(
    "path",
    [
        "../store.py",
        "../../pyproject.toml",
        "%2e%2e/store.py",
        "page/../../store.py",
        "photograph/../../../etc/passwd",
        "photograph/..%2f..%2fetc%2fpasswd",
        "photograph/-1",
        "photograph/40",
        "photograph/9999999999999999999999",
        "thumbnail/0/0",
        "thumbnail/3/0",
        "thumbnail/-1/-1",
        "thumbnail/1/9",
        "api/region/1/9",
        "api/members/5",
        "api/members/-6",
        "api/members/x",
        "api/members/0?start=-1",
        "api/members/0?count=100000",
    ],
)
def test_nothing_but_the_runs_own_images_can_be_had(site: Site, path: str):
    status, body = site.send("GET", f"/{TOKEN}/{path}")
    assert status in (400, 403, 404)
    assert b"root:" not in body
    assert b"sqlite3" not in body


def test_a_body_of_ten_megabytes_is_refused(site: Site):
    """The server need not take it all: it may answer, or hang up, while it is still being sent."""
    head = (
        f"POST {DECIDE} HTTP/1.1\r\nHost: {site.host}\r\nOrigin: http://{site.host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {10_000_000}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        try:
            connection.sendall(head.encode() + b" " * 10_000_000)
            answer = connection.recv(100)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert site.board.store.version() == 0
    assert post(site) == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"seen": 0, "clusters": ["0"], "name": "mug"}',
        b'{"seen": 0, "clusters": [0], "name": ["mug"]}',
        b'{"seen": 0, "clusters": [0], "name": "mug", "more": 1}',
        b'{"clusters": [0], "name": "mug"}',
        b'{"seen": 0, "clusters": [0], "name": " "}',
        b'{"seen": 0, "clusters": [0], "name": "a\\u0000b"}',
        b'{"seen": 0, "clusters": [0], "name": "NOVEL_0003"}',
        json.dumps({"seen": 0, "clusters": [0], "name": "x" * 101}).encode(),
    ],
)
def test_what_is_no_decision_is_refused(site: Site, body: bytes):
    assert post(site, body=body) == 400
    assert site.board.store.version() == 0


@pytest.mark.parametrize(
    ("kind", "decision"),
    [
        ("name", {"clusters": [5], "name": "mug"}),
        ("name", {"clusters": [-1], "name": "mug"}),
        ("merge", {"cluster": 0, "into": 77}),
        ("merge", {"cluster": 0, "into": -9}),
        ("ignore", {"clusters": [99]}),
        ("skip", {"cluster": 2**40}),
        ("move", {"regions": [[0, 0]], "into": -1}),
        ("move", {"regions": [[9, 0]], "into": 77}),
        ("move", {"regions": [[9, 0]], "into": -9}),
        ("move_to_name", {"regions": [[9, 99]], "name": "mug"}),
        ("nonsense", {}),
    ],
)
def test_unknown_clusters_and_regions_are_refused(site: Site, kind: str, decision: dict):
    status, answer = site.decide(kind, **decision)
    assert status == 404, answer
    assert site.board.store.version() == 0


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["", "style.css", "api/state", "photograph/1", "api/decide/name"])
def test_nothing_can_be_uploaded_or_deleted(site: Site, method: str, path: str):
    own = {"Origin": f"http://{site.host}", "Content_Type": "application/json"}
    assert site.send(method, f"/{TOKEN}/{path}", body=NAME, **own)[0] == 405
    assert site.board.store.version() == 0


@pytest.mark.parametrize("path", ["", "photograph/1", "thumbnail/1/0", "upload"])
def test_files_are_taken_nowhere(site: Site, path: str):
    content = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\nx\r\n--b--'
    assert post(site, f"/{TOKEN}/{path}", content, Content_Type="multipart/form-data; b=b") == 415
    assert post(site, f"/{TOKEN}/{path}", content) in (404, 405)


def test_the_page_may_load_nothing_from_outside(site: Site):
    connection = http.client.HTTPConnection("127.0.0.1", site.port)
    connection.request("GET", f"/{TOKEN}/")
    answer = connection.getresponse()
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(rb"https?://", answer.read())
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    connection.close()
