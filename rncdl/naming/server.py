"""The page's server: what it shows, and the decisions it takes."""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from rncdl.naming import deciding
from rncdl.naming.board import Board, UnknownPlaceError
from rncdl.naming.deciding import BadDecisionError, NameTakenError
from rncdl.naming.guard import Guard
from rncdl.naming.pictures import Pictures
from rncdl.naming.store import ChangedMeanwhileError, LogLine

_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
MAX_MEMBERS = 500
_MOVES_SHOWN = 8


class Decision(BaseModel):
    """What the page sends; every kind of decision takes the fields that it needs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seen: int
    """the version that the person was looking at"""
    cluster: int = 0
    clusters: list[int] = []
    into: int = 0
    name: str = ""
    merge: bool = False
    ignored: bool = True
    regions: list[list[int]] = []
    expected: int | None = None

    def keys(self) -> list[tuple[int, int]]:
        """The regions."""
        if any(len(key) != 2 for key in self.regions):
            raise BadDecisionError("A region is [image, region].")
        return [(image, region) for image, region in self.regions]


def _redo(board: Board, d: Decision) -> None:
    board.store.redo(d.expected)


def _undo(board: Board, d: Decision) -> None:
    board.store.undo(d.expected)


_DECISIONS: dict[str, Callable[[Board, Decision], None]] = {
    "name": lambda b, d: deciding.name_clusters(b, d.clusters, d.name, merge=d.merge, seen=d.seen),
    "merge": lambda b, d: deciding.merge_clusters(b, d.cluster, d.into, seen=d.seen),
    "separate": lambda b, d: deciding.separate_cluster(b, d.cluster, seen=d.seen),
    "ignore": lambda b, d: deciding.ignore_clusters(b, d.clusters, ignored=d.ignored, seen=d.seen),
    "skip": lambda b, d: deciding.skip_cluster(b, d.cluster, seen=d.seen),
    "move": lambda b, d: deciding.move_regions(b, d.keys(), d.into, seen=d.seen),
    "move_to_name": lambda b, d: deciding.move_regions_to_name(b, d.keys(), d.name, seen=d.seen),
    "move_to_new": lambda b, d: deciding.move_regions_to_new(b, d.keys(), seen=d.seen),
    "move_back": lambda b, d: deciding.move_regions_back(b, d.keys(), seen=d.seen),
    "accept": lambda b, d: deciding.accept_suggestions(b, d.clusters, seen=d.seen),
    "accept_moves": lambda b, d: deciding.accept_moves(b, d.name or None, seen=d.seen),
    "undo": _undo,
    "redo": _redo,
}


@dataclass(frozen=True)
class Served:
    """All that the page is made from."""

    board: Board
    pictures: Pictures
    title: str


def build_app(served: Served, *, token: str) -> Starlette:
    """The application; every address begins with the token."""
    endpoints = _Endpoints(served)
    routes = [
        *_page_routes(),
        Route("/api/state", endpoints.state),
        Route("/api/changes", endpoints.changes),
        Route("/api/members/{place}", endpoints.members),
        Route("/api/history", endpoints.history),
        Route("/api/earlier", endpoints.earlier),
        Route("/api/region/{image}/{region}", endpoints.region),
        Route("/api/decide/{kind}", endpoints.decide, methods=["POST"]),
        Route("/thumbnail/{image}/{region}", endpoints.thumbnail),
        Route("/photograph/{image}", endpoints.photograph),
        Route("/mask/{image}/{region}", endpoints.mask),
    ]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(Guard, token=token), Middleware(GZipMiddleware, compresslevel=4)],
        exception_handlers={
            _BadNumberError: _answer(400),
            ValidationError: _answer(400, "This is no decision that the page could have sent."),
            BadDecisionError: _answer(400),
            UnknownPlaceError: _answer(404),
            ChangedMeanwhileError: _answer(409),
            NameTakenError: _name_taken,
        },
    )


class _Endpoints:
    """Answers; one at a time where the board is concerned, pictures beside each other."""

    def __init__(self, served: Served) -> None:
        self._board, self._pictures, self._title = served.board, served.pictures, served.title
        self._lock = threading.Lock()

    def state(self, request: Request) -> Response:
        with self._lock:
            self._board.refresh()
            found = {"title": self._title, "known": self._board.known, **self._news(None)}
        return JSONResponse(found)

    def changes(self, request: Request) -> Response:
        since = _number(request.query_params.get("since", ""))
        with self._lock:
            self._board.refresh()
            return JSONResponse(self._news(since))

    def members(self, request: Request) -> Response:
        place = _number(request.path_params["place"])
        start = _number(request.query_params.get("start", "0"))
        count = _number(request.query_params.get("count", "200"))
        if start < 0 or not 0 < count <= MAX_MEMBERS:
            raise _BadNumberError("start is 0 or more, count 1 to 500.")
        with self._lock:
            self._board.refresh()
            return JSONResponse(self._board.members(place, start=start, count=count))

    def history(self, request: Request) -> Response:
        before = request.query_params.get("before")
        with self._lock:
            lines = self._board.store.history(before=None if before is None else _number(before))
        return JSONResponse([asdict(line) for line in lines])

    def earlier(self, request: Request) -> Response:
        with self._lock:
            self._board.refresh()
            suggestions = [asdict(one) for one in self._board.open_suggestions().values()]
            moves = [
                {"name": name, "number": len(keys), "pictures": keys[:_MOVES_SHOWN]}
                for name, keys in self._board.open_moves().items()
            ]
        return JSONResponse({"suggestions": suggestions, "moves": moves})

    async def decide(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in _DECISIONS:
            raise UnknownPlaceError("There is no such decision.")
        decision = Decision.model_validate_json(await request.body())
        return await run_in_threadpool(self._decide, kind, decision)

    def _decide(self, kind: str, decision: Decision) -> Response:
        with self._lock:
            self._board.refresh()
            _DECISIONS[kind](self._board, decision)
            self._board.refresh()
            return JSONResponse(self._news(decision.seen))

    def region(self, request: Request) -> Response:
        return _found(self._pictures.place_in_photograph(_region_key(request)))

    def thumbnail(self, request: Request) -> Response:
        return _picture(self._pictures.thumbnail(_region_key(request)))

    def photograph(self, request: Request) -> Response:
        return _picture(self._pictures.photograph(_number(request.path_params["image"])))

    def mask(self, request: Request) -> Response:
        return _picture(self._pictures.mask(_region_key(request)))

    def _news(self, since: int | None) -> dict[str, Any]:
        store = self._board.store
        return {
            "version": self._board.version,
            "cards": self._board.cards(since),
            "undo": _line(store.next_undo()),
            "redo": _line(store.next_redo()),
        }


class _BadNumberError(Exception):
    """Something in the address is no number."""


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise _BadNumberError("This is no number.") from None
    if abs(number) >= 2**53:
        raise _BadNumberError("This number is too large.")
    return number


def _region_key(request: Request) -> tuple[int, int]:
    return _number(request.path_params["image"]), _number(request.path_params["region"])


def _line(line: LogLine | None) -> dict[str, Any] | None:
    return None if line is None else {"id": line.id, "said": line.said}


def _found(found: dict[str, object] | None) -> Response:
    if found is None:
        raise UnknownPlaceError("There is no such region.")
    return JSONResponse(found)


def _picture(content: bytes | None) -> Response:
    if content is None:
        raise UnknownPlaceError("There is no such picture, or its image cannot be read any more.")
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(content, media_type="image/webp", headers=headers)


def _page_routes() -> list[Route]:
    """The page's own files, and no others; `index.html` is the address itself."""
    page = [Path(one.name) for one in (files("rncdl.naming") / "page").iterdir()]
    return [
        Route("/" if path.name == "index.html" else f"/{path.name}", _file(path))
        for path in page
        if path.suffix in _MEDIA_TYPES
    ]


def _file(path: Path) -> Callable[[Request], Response]:
    content = (files("rncdl.naming") / "page" / path.name).read_bytes()

    def serve(request: Request) -> Response:
        return Response(content, media_type=_MEDIA_TYPES[path.suffix])

    return serve


def _answer(status: int, text: str | None = None) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": text or str(error)}, status)

    return answer


def _name_taken(request: Request, error: Exception) -> Response:
    assert isinstance(error, NameTakenError)
    return JSONResponse({"error": str(error), "taken": error.name}, 409)
