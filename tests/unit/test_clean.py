"""labkit clean: what it lists, and that it removes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import ParameterError
from labkit.present import clean
from tests.recorded import write_run


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    outputs, cache = tmp_path / "outputs", tmp_path / "cache"
    for folder in (outputs / "samples", cache / "builds" / "b1", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x" * 2000)
    (outputs / "README.md").write_text("committed")
    write_run(outputs)
    (outputs / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(clean, "outputs_folder", lambda _: outputs)
    monkeypatch.setattr(clean, "cache_folder", lambda: cache)
    return tmp_path


RUN = "outputs/03_late_arrival/20261130T120000Z-abcd"


def test_it_lists_runs_and_the_cache_and_not_what_is_committed(held: Path) -> None:
    items = {item.name: item for item in clean.holdings()}
    assert set(items) == {RUN, "outputs/link", "cache/builds"}
    assert items["cache/builds"].size_bytes == 2000
    assert 0 <= items[RUN].age_s < 60
    assert [item.size_bytes for item in clean.holdings()] == sorted(
        (i.size_bytes for i in items.values()), reverse=True
    )


@pytest.mark.parametrize("name", [RUN, "outputs/03_late_arrival", "outputs/03_late_arrival/"])
def test_it_removes_what_is_named(held: Path, name: str) -> None:
    assert [item.name for item in clean.remove([name])] == [RUN]
    assert not (held / "outputs" / "03_late_arrival").exists()
    assert (held / "cache" / "builds").exists()


def test_of_a_link_it_removes_the_link(held: Path) -> None:
    clean.remove(["outputs/link"])
    assert not (held / "outputs" / "link").is_symlink()
    assert (held / "elsewhere" / "kept").is_file()


@pytest.mark.parametrize(
    "name",
    ["outputs", "", "/", "..", "outputs/..", "outputs/../elsewhere", "outputs/README.md", "outputs/samples", "/etc"],
)
def test_nothing_else_can_be_named(held: Path, name: str) -> None:
    before = sorted(held.rglob("*"))
    if name == "outputs":  # all runs, and no more
        clean.remove([name])
        assert (held / "outputs" / "README.md").is_file()
        assert (held / "outputs" / "samples" / "kept").is_file()
        return
    with pytest.raises(ParameterError, match="not in the list, so nothing is removed"):
        clean.remove([RUN, name])
    assert sorted(held.rglob("*")) == before


def test_sizes_and_ages_are_said_as_people_say_them() -> None:
    assert [clean.size_text(n) for n in (12, 2_000, 98_362_432, 3e9)] == ["12 B", "2 KB", "98 MB", "3.0 GB"]
    assert [clean.age_text(n) for n in (5, 150, 9000, 200_000)] == ["5 seconds", "2 minutes", "2 hours", "2 days"]
