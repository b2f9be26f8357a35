"""The server's part of the player: a run's policy as WebAssembly for the browser, or its actions one by one.

Nothing of a run is executed here. The policy is a list of our own operations, and the browser has the env's equations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from surefoot.deploy import program as ops
from surefoot.deploy.c.wasm import compile_wasm, find_wasm_compiler
from surefoot.deploy.describe import read_program
from surefoot.deploy.light_agent import LightAgent
from surefoot.deploy.serve.batching import Batcher
from surefoot.deploy.serve.questions import Reader, Refusal
from surefoot.deploy.size import num_weights
from surefoot.errors import UsageError
from surefoot.runs import Run
from surefoot.runs.catalog import Entry
from surefoot.runs.locate import locate_checkpoint

MOST_WEIGHTS = 300_000  # numbers that are compiled; for more, a compiler would take too long
MOST_BYTES = 2**20  # of a question
KEPT = 8  # policies in memory
# Of an env as it is registered.
USUAL: dict[str, tuple[object, ...]] = {"env_kwargs": ("{}", None), "wrappers": ([], None), "frame_stack": (1, None)}
Json = dict[str, object]


@dataclass
class Loaded:
    """A policy that the page plays with."""

    step: int
    program: ops.Program
    module: bytes | None = None  # WebAssembly, once compiled

    def __post_init__(self) -> None:
        self.reader, self.batcher = Reader(self.program, most=1), Batcher(LightAgent(self.program), most=1)


class Player:
    def __init__(self) -> None:
        self._loaded: dict[tuple[str, int], Loaded] = {}
        self._turn = asyncio.Semaphore(1)  # one compiler at a time: training needs the cores

    async def open(self, entry: Entry) -> Json:
        """Load the newest policy of a run; returns what the page has to know about it."""
        entry.directory.refuse_links()
        if Run(entry.directory).checkpoints.latest is None:
            raise HTTPException(404, "this run has no checkpoint yet; the first one is written within a minute")
        facts = _facts(Run(entry.directory).config)
        try:
            loaded = await run_in_threadpool(_load, entry)
        except UsageError as error:  # an encoder of the user's own: only `surefoot video` can play it
            return {**facts, "step": None, "policy": None, "why": str(error)}
        self._keep(entry.id, loaded)
        facts |= {"step": loaded.step, "policy": _described(loaded.program)}
        return {**facts, "why": await run_in_threadpool(_why_not_compiled, loaded.program)}

    def _keep(self, run: str, loaded: Loaded) -> None:
        self._loaded.pop((run, loaded.step), None)
        self._loaded[run, loaded.step] = loaded
        while len(self._loaded) > KEPT:
            self._loaded.pop(next(iter(self._loaded)))

    def _find(self, request: Request) -> Loaded:
        run, step = (request.query_params.get(name, "") for name in ("run", "step"))
        found = next((each for key, each in self._loaded.items() if (key[0], str(key[1])) == (run, step)), None)
        if found is None:
            raise HTTPException(404, "this policy is not loaded any more; reload the page")
        return found

    async def module(self, request: Request) -> bytes:
        """The policy as WebAssembly."""
        loaded = self._find(request)
        async with self._turn:
            if loaded.module is None:
                why = await run_in_threadpool(_why_not_compiled, loaded.program)
                compiler = _compiler()
                if why is not None or compiler is None:
                    raise HTTPException(404, why or "")
                loaded.module = await run_in_threadpool(compile_wasm, loaded.program, compiler)
        return loaded.module

    async def act(self, request: Request) -> Json:
        """An action: question and answer are those of `surefoot serve`."""
        loaded = self._find(request)
        try:
            return await loaded.batcher.answer(loaded.reader.read(await _body(request)))
        except Refusal as refusal:
            raise HTTPException(refusal.status, str(refusal)) from None


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST_BYTES:
            raise Refusal(413, f"the request has more than the {MOST_BYTES:,} bytes that are taken")
    return bytes(found)


def _load(entry: Entry) -> Loaded:
    folder, _ = locate_checkpoint(entry.directory.path)
    return Loaded(int(folder.name), read_program(folder))


def _facts(config: Mapping[str, object]) -> Json:
    """The env of a run, and the settings that make it another than the registered one."""
    limit = config.get("max_episode_steps")
    return {
        "env": config.get("env"),
        "limit": limit if isinstance(limit, int) else None,
        "changed": [name for name, usual in USUAL.items() if config.get(name) not in usual],
    }


def _described(program: ops.Program) -> Json | None:
    """Its numbers, if it takes one vector and gives one choice or one vector; None for any other."""
    layout, (head, *others) = program.layout, program.heads
    if not layout.plain or layout.mask_size or others or layout.leaves[0].kind != "vector":
        return None
    single = isinstance(head, ops.Choice) and len(head.sizes) == 1 and not head.start.any()
    choices = head.sizes[0] if isinstance(head, ops.Choice) and single else None
    if choices is None and isinstance(head, (ops.Choice, ops.Bits)):
        return None
    return {"observation": layout.numbers, "action": ops.width(head), "choices": choices, "memory": program.memory_size}


@cache
def _compiler() -> tuple[str, ...] | None:
    return find_wasm_compiler()


def _why_not_compiled(program: ops.Program) -> str | None:
    """The reason why the server has to act; None if the browser can."""
    if _compiler() is None:
        return (
            "there is no compiler for WebAssembly; install clang with lld, or the extra: pip install 'surefoot[wasm]'"
        )
    weights = sum(num_weights(program.operations[at]) for at in program.acting)
    return None if weights <= MOST_WEIGHTS else f"{weights:,} weights are too many to compile while you wait"
