"""A tiny source tree in the shape of llama.cpp's: compiled in a second, and named as the real one is."""

from __future__ import annotations

import subprocess
from pathlib import Path

# as cmake/build-info.cmake: whoever passes nothing in gets what git says of the folder
LISTS = """
cmake_minimum_required(VERSION 3.14)
project(toy C)
if (NOT DEFINED LLAMA_BUILD_NUMBER)
  execute_process(COMMAND git rev-list --count HEAD WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
                  OUTPUT_VARIABLE LLAMA_BUILD_NUMBER OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if (LLAMA_BUILD_UI OR LLAMA_BUILD_TESTS OR BUILD_SHARED_LIBS OR NOT LLAMA_BUILD_SERVER)
  message(FATAL_ERROR "more is built than llama-server")
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_subdirectory(tools/server)
"""
SERVER_LISTS = """
add_executable(llama-server main.c part0.c part1.c part2.c part3.c)
target_compile_definitions(llama-server PRIVATE NUMBER=${LLAMA_BUILD_NUMBER} COMMIT="${LLAMA_BUILD_COMMIT}")
add_executable(llama-batched-bench bench.c)
"""
SLOW = """
add_custom_command(OUTPUT slow.h COMMAND sleep 30 COMMAND ${CMAKE_COMMAND} -E touch slow.h)
target_sources(llama-server PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/slow.h)
"""
MAIN = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char ** argv) {
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        fprintf(stderr, "version: %d (%s)\\nbuilt with a C compiler for tests\\n", NUMBER, COMMIT);
        return 0;
    }
    argv[0] = "SHIM";
    execv("SHIM", argv);
    return 1;
}
"""


def make_tree(folder: Path, *, shim: Path | str = "/bin/false", slow: bool = False) -> Path:
    """Write the tree.

    Args:
        folder: where; made if it isn't there.
        shim: what the compiled llama-server becomes for anything but --version.
        slow: one step of its build takes 30 s.
    """
    server = folder / "tools" / "server"
    server.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").write_text(LISTS)
    (server / "CMakeLists.txt").write_text(SERVER_LISTS + (SLOW if slow else ""))
    (server / "main.c").write_text(MAIN.replace("SHIM", str(shim)))
    (server / "bench.c").write_text("int main(void) { return 0; }\n")
    for i in range(4):
        (server / f"part{i}.c").write_text(f"int part{i}(void) {{ return {i}; }}\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, as nobody in particular."""
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repository(folder: Path, commits: int = 1) -> Path:
    """Make a repository of whatever is in the folder, with so many commits."""
    git(folder, "init", "--quiet", "--initial-branch", "master")
    for i in range(commits):
        (folder / "NOTES").write_text(f"{i}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"commit {i}")
    return folder
