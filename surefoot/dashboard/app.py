"""The routes of the page. A run is named by its path below the root and looked up in the catalog, never on disk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import numpy as np
import plotly
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from surefoot import __version__
from surefoot.dashboard.answers import Answers, plain_file
from surefoot.dashboard.films import Film, Films
from surefoot.dashboard.guard import PLAYER, Guard
from surefoot.dashboard.live import Live, as_json
from surefoot.dashboard.player import Player
from surefoot.dashboard.replays import Replays
from surefoot.dashboard.replies import Reply, problem
from surefoot.errors import SurefootError, did_you_mean
from surefoot.runs import Catalog
from surefoot.runs.catalog import Entry
from surefoot.runs.checkpoints import is_step

STATIC = Path(__file__).parent / "static"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
MOST = 200  # runs in one question
Handler = Callable[["Page", Request], Awaitable[Response]]


class Page:
    """The server's state: the catalog, the event streams, the films and the policies that play."""

    def __init__(self, root: Path) -> None:
        self.live, self.films, self.player = Live(Catalog(root)), Films(), Player()
        self.answers, self.replays = Answers(), Replays()

    @property
    def catalog(self) -> Catalog:
        return self.live.catalog

    def _known(self, id: str) -> Entry | None:
        """A run of the catalog, unless a link has replaced its folder, or one above it, since the last look."""
        entry, place = self.catalog.entries.get(id), self.catalog.root
        for part in entry.directory.path.relative_to(place).parts if entry else ():
            place = place / part
            if place.is_symlink():
                return None
        return entry

    def entry(self, id: str) -> Entry:
        found = self._known(id)
        if found is None:
            raise HTTPException(404, f"the run {id} does not exist (any more){did_you_mean(id, self.catalog.entries)}")
        return found

    def entries(self, request: Request) -> list[Entry]:
        ids = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST]
        if not ids:
            raise HTTPException(400, "no run is named; add run=…")
        found = [entry for id in ids if (entry := self._known(id)) is not None]
        return found or [self.entry(ids[0])]


async def runs(page: Page, request: Request) -> Response:
    await page.live.look()
    listed = [as_json(entry) for entry in page.catalog.entries.values()]
    facts = {
        "root": str(page.catalog.root),
        "path": str(page.catalog.root.absolute()),
        "version": __version__,
        "latest": page.catalog.latest(),
    }
    return Reply({**facts, "runs": listed})


async def events(page: Page, request: Request) -> Response:
    return StreamingResponse(page.live.stream(), media_type="text/event-stream")


async def watch(page: Page, request: Request) -> Response:
    """POST: start filming the newest checkpoint. GET: how far the film is."""
    entry = page.entry(request.query_params.get("run", ""))
    entry.directory.refuse_links()
    if request.method == "POST":
        film = page.films.newest(entry)
        if film is None:
            return problem("this run has no checkpoint yet; the first one is written within a minute")
    else:
        film = _film(page, request)
    answer = {"step": film.step, "shown": film.shown, "state": film.state, "why": film.why}
    if film.state == "failed":
        page.films.forget(film)
    return Reply(answer)


async def replay(page: Page, request: Request) -> Response:
    """One update of a run, computed again, in words."""
    entry = page.entry(request.query_params.get("run", ""))
    entry.directory.refuse_links()
    return Reply({"text": await page.replays.look(entry, request.query_params.get("update", ""))})


def _film(page: Page, request: Request) -> Film:
    step = request.query_params.get("step", "")
    film = page.films.get(request.query_params.get("run", ""), int(step)) if is_step(step) else None
    if film is None:
        raise HTTPException(404, "no such film")
    return film


async def film(page: Page, request: Request) -> Response:
    found = _film(page, request)
    if found.state != "ready":
        return problem("the film is not ready")
    return FileResponse(found.file, media_type="video/mp4")


async def video(page: Page, request: Request) -> Response:
    entry, name = page.entry(request.query_params.get("run", "")), request.query_params.get("file", "")
    if not name.endswith(".mp4") or "/" in name or "\\" in name:
        raise HTTPException(404, "no such video")
    return FileResponse(plain_file(entry, "videos", name), media_type="video/mp4")


async def play(page: Page, request: Request) -> Response:
    """The player. The run is named in the address and asked for by the page's script."""
    return FileResponse(STATIC / "play.html", media_type="text/html")


async def player(page: Page, request: Request) -> Response:
    """What the player has to know about a run and its newest policy, which is loaded."""
    return Reply(await page.player.open(page.entry(request.query_params.get("run", ""))))


async def module(page: Page, request: Request) -> Response:
    return Response(await page.player.module(request), media_type="application/wasm")


async def act(page: Page, request: Request) -> Response:
    return Reply(await page.player.act(request))


@cache
def index_html() -> str:
    """The page. Plotly's script adds a style sheet for maps, which the policy forbids and this page does not need,
    unless an element with the sheet's id exists already. The id changes with the version, so it is read from the
    script."""
    ids = re.findall(r'document\.getElementById\("([0-9a-f]{64})"\)', PLOTLY.read_text(encoding="utf-8"))
    present = "".join(f'<meta id="{id}">' for id in dict.fromkeys(ids))
    return (STATIC / "index.html").read_text(encoding="utf-8").replace("<!-- plotly -->", present)


async def index(page: Page, request: Request) -> Response:
    return HTMLResponse(await run_in_threadpool(index_html))


async def plotly_script(page: Page, request: Request) -> Response:
    """Plotly's script from the installed wheel. It changes only with the package."""
    return FileResponse(PLOTLY, media_type="text/javascript", headers={"cache-control": "private, max-age=86400"})


async def failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return problem(str(error.detail), error.status_code)
    return problem(str(error), 422)


def make_app(root: Path, *, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The page over all runs below `root`. `host`: what it is bound to; `token`: what others must know."""
    page = Page(root)

    def route(path: str, handler: Handler, *methods: str) -> Route:
        async def answer(request: Request) -> Response:
            return await handler(page, request)

        return Route(path, answer, methods=methods or ("GET",))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        first = asyncio.create_task(page.live.look())  # while the browser starts
        yield
        first.cancel()
        page.films.close()
        page.replays.close()

    def asked(method: Callable[[list[Entry], Request], Response]) -> Handler:
        """Files are read in a thread, so that the server keeps answering."""

        def calmly(entries: list[Entry], request: Request) -> Response:
            with np.errstate(all="ignore"):  # numbers like 1e308 overflow; the page shows them as unknown
                return method(entries, request)

        async def handler(page: Page, request: Request) -> Response:
            return await run_in_threadpool(calmly, page.entries(request), request)

        return handler

    answers = page.answers
    routes = [
        route("/", index),
        route("/plotly.js", plotly_script),
        route("/api/runs", runs),
        route("/api/events", events),
        route("/api/watch", watch, "GET", "POST"),
        route("/api/replay", replay, "POST"),
        route(PLAYER, play),
        route("/api/player", player),
        route("/api/act", act, "POST"),
        route("/policy.wasm", module, "POST"),
        route("/film.mp4", film),
        route("/video.mp4", video),
        *(route(path, asked(method)) for path, method in answers.paths().items()),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, host=host, token=token), Middleware(GZipMiddleware, minimum_size=2000)],
        exception_handlers={HTTPException: failed, SurefootError: failed, OSError: failed},
    )
    app.state.page = page
    return app
