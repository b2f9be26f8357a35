"""Compiles an exported policy to WebAssembly, which browsers execute: with clang and LLVM's linker, or PyPI's ziglang.

The module imports nothing and exports its `memory` and four functions: `observation` and `action` return addresses in
that memory, `begin` starts an episode, and `step` reads the observation and writes the action.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from surefoot.deploy.c.compiling import STRICT, run_tool
from surefoot.deploy.c.source import translate
from surefoot.deploy.exporter import working_folder
from surefoot.errors import SurefootError
from surefoot.text import one_line

if TYPE_CHECKING:
    from surefoot.deploy.program import Program

# Without these, a compiler would make calls of memcpy from loops that copy, and there is no library to have them.
ALONE = ("-ffreestanding", "-fno-builtin", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry")
COMPILE_SECONDS = 120
GLUE = """#include "policy.h"

#define EXPORTED(name) __attribute__((export_name(#name)))

static policy_state state;
static policy_obs seen[POLICY_OBSERVATION];
static float chosen[POLICY_ACTION];

EXPORTED(observation) policy_obs *player_observation(void) { return seen; }
EXPORTED(action) float *player_action(void) { return chosen; }
EXPORTED(begin) void player_begin(void) { policy_begin(&state); }
EXPORTED(step) int player_step(void) { return policy_step(seen, 0, &state, chosen); }
"""


def find_wasm_compiler() -> tuple[str, ...] | None:
    """The command that compiles and links for WebAssembly; None if there is none."""
    clang = shutil.which("clang")
    if clang is not None and _links(words := (clang, "--target=wasm32")):
        return words
    if find_spec("ziglang") is not None:
        return sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"
    return None


def _links(compiler: tuple[str, ...]) -> bool:
    """Tried with an empty program: clang is often there without the linker, which is a package of its own."""
    with working_folder() as place:
        (place / "empty.c").write_text("typedef int nothing;\n", encoding="ascii")
        words = [*compiler, *ALONE, "empty.c", "-o", "empty.wasm"]
        return run_tool(words, place, COMPILE_SECONDS).returncode == 0


def compile_wasm(program: Program, compiler: tuple[str, ...]) -> bytes:
    """A module with the policy, which takes raw observations and gives the most likely actions."""
    found = translate(program, "policy")
    with working_folder() as folder:
        for name, text in {"policy.h": found.header, "policy.c": found.source, "player.c": GLUE}.items():
            (folder / name).write_text(text, encoding="ascii")
        words = [*compiler, *STRICT, *ALONE, "policy.c", "player.c", "-o", "policy.wasm"]
        built = run_tool(words, folder, COMPILE_SECONDS)
        if built.returncode:
            raise SurefootError(f"{compiler[0]} does not compile the policy: {one_line(built.stderr, 2000)}")
        return (folder / "policy.wasm").read_bytes()
