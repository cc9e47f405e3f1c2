"""A comparison's pack: with the runs that it compared, so that another machine can recompute it."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.measure.record import Run
from labkit.present.pack import NO_NOTEBOOK, pack
from labkit.present.unpack import opened
from labkit.present.verify import verify_run
from tests.notebooks import run_notebook
from tests.unit.test_replay import LATE, copy_as_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A comparison of two runs, in a folder that can go away."""
    one, other = (copy_as_run(LATE, tmp_path / "then", name) for name in ("20260101T000000Z-a", "20260102T000000Z-b"))
    found: Run = run_notebook("06_compare_runs", before=str(one), after=str(other), outputs=str(tmp_path / "then"))[
        "run"
    ]
    return found


def test_the_pack_of_a_comparison_holds_its_sides_and_is_verified_and_replayed_without_them(
    run: Run, tmp_path: Path
) -> None:
    made, left = pack(run.folder, tmp_path / "06.zip")
    shutil.rmtree(tmp_path / "then")
    assert left == [NO_NOTEBOOK]
    found = verify_run(made)
    assert found.ok, found.lines
    assert {"before.0.zip:", "after.0.zip:"} <= set(found.checked)
    with opened(made) as folder:
        again = run_notebook("06_compare_runs", replay=str(folder), outputs=str(tmp_path / "again"))["run"]
    assert again.fields["verdict"] == run.fields["verdict"]


def test_a_side_that_was_altered_inside_the_pack_of_a_comparison_is_refused(run: Run, tmp_path: Path) -> None:
    made, _ = pack(run.folder, tmp_path / "06.zip")
    altered = repacked(made, "before.0.zip", lambda inner: inner.replace(b"manifest.json", b"manifesto.jso"))
    found = verify_run(altered)
    assert not found.ok
    assert found.differences[0].startswith("before.0.zip: ")


def test_the_pack_of_a_comparison_whose_sides_are_gone_says_so(run: Run, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "then" / "03_late_arrival" / "20260101T000000Z-a")
    made, (_, left) = pack(run.folder, tmp_path / "06.zip")
    assert "isn't here any more" in left
    assert "isn't here any more" in verify_run(made).differences[0]


def repacked(path: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """Return a pack with one file changed, and a manifest that fits."""
    with zipfile.ZipFile(path) as archive:
        files = {one: archive.read(one) for one in archive.namelist()}
    files[name] = change(files[name])
    manifest = json.loads(files["manifest.json"])
    manifest["files"][name] = {"sha256": hashlib.sha256(files[name]).hexdigest(), "bytes": len(files[name])}
    files["manifest.json"] = json.dumps(manifest).encode()
    target = path.with_name(f"altered-{path.name}")
    with zipfile.ZipFile(target, "w") as archive:
        for one, data in files.items():
            archive.writestr(one, data)
    return target
