"""verify: every kind of tampering is found and said in plain words; what is untouched is ok."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from labkit.analyze.verdict import Check, Verdict
from labkit.errors import AlteredError, ParameterError
from labkit.measure.record import read_run
from labkit.present import unpack as unpacking
from labkit.present.headline import verdict_html
from labkit.present.shown import same_text
from labkit.present.unpack import opened
from labkit.present.verify import Verification, verify_run
from tests.conftest import PROJECT
from tests.notebooks import read_json

SAMPLES = PROJECT / "outputs" / "samples"
LATE, HELD, FULL = (SAMPLES / name for name in ("late_arrival_joined", "late_arrival_held", "kv_exhausted"))
Change = Callable[[Path], None]


# --- making packs -----------------------------------------------------------------------------------------


def notebook_of(folder: Path) -> Any:
    """An executed notebook that shows the folder's verdict at its top and its end."""
    checks = tuple(Check(**check) for check in read_json(folder / "run.json")["verdict"]["checks"])
    page = {"text/html": verdict_html(Verdict(checks), [("Repeat it", "papermill …")])}
    outputs = [new_output("display_data", page)]
    return new_notebook(cells=[new_code_cell("top", outputs=outputs), new_code_cell("end", outputs=outputs)])


def seal(folder: Path) -> None:
    """Write a manifest that fits."""
    files = [path for path in folder.iterdir() if path.name != "manifest.json"]
    sums = {p.name: {"sha256": hashlib.sha256(p.read_bytes()).hexdigest(), "bytes": p.stat().st_size} for p in files}
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "files": sums}))


def packed(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        for member in sorted(folder.iterdir()):
            pack.write(member, member.name)
    return path


@pytest.fixture(params=[LATE], ids=lambda path: path.name)
def content(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a pack holds, to be tampered with."""
    folder = tmp_path / "content"
    shutil.copytree(request.param, folder)
    nbformat.write(notebook_of(folder), folder / "executed.ipynb")
    (folder / "report.html").write_text("<p>a page</p>")
    seal(folder)
    return folder


def answer(folder: Path, change: Change, *, sealed: bool = True) -> Verification:
    """Tamper, seal anew as a careful forger would, and ask verify."""
    change(folder)
    if sealed:
        seal(folder)
    return verify_run(packed(folder, folder.parent / "pack.zip"))


def rows(folder: Path, stream: str, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    path = folder / f"{stream}.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    change(found)
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def record(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    run = read_json(folder / "run.json")
    change(run)
    (folder / "run.json").write_text(json.dumps(run))


def checks(run: dict[str, Any]) -> list[dict[str, Any]]:
    return run["verdict"]["checks"]  # type: ignore[no-any-return]


# --- untouched --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [LATE, HELD, FULL], ids=lambda path: path.name)
def test_a_sample_is_ok(sample: Path) -> None:
    found = verify_run(sample)
    assert found.ok, found.lines
    assert f"verdict recomputed: {read_json(sample / 'run.json')['verdict']['status']}" in found.lines
    assert "no executed notebook" in "\n".join(found.lines)


def test_an_untouched_pack_is_ok_and_so_is_its_folder(content: Path) -> None:
    for found in (answer(content, lambda folder: None), verify_run(content)):
        assert found.ok, found.lines
        assert "the verdict that executed.ipynb shows was compared" in found.lines
        assert "files are what their manifest.json says" in found.lines[0]


# --- tampering that a careful forger seals anew -------------------------------------------------------------


def flip_verdict(folder: Path) -> None:
    record(folder, lambda run: run["verdict"].update(status="refuted"))


def flip_check(folder: Path) -> None:
    record(folder, lambda run: checks(run)[1].update(status="refuted"))


def better_words(folder: Path) -> None:
    record(folder, lambda run: checks(run)[0].update(observed="after B's first token A got 999 of its 96 tokens"))


def better_number(folder: Path) -> None:
    record(folder, lambda run: checks(run)[0]["numbers"]["B"].update(tokens_after=999))


def drop_check(folder: Path) -> None:
    record(folder, lambda run: checks(run).pop())


def drop_token(folder: Path) -> None:
    rows(folder, "tokens", lambda found: found.pop(len(found) // 2))


def earlier_first_token(folder: Path) -> None:
    """B gets its first token half a second earlier, in both files."""

    def shift(found: list[dict[str, Any]]) -> None:
        for row in found:
            if (row["arm"], row["label"], row.get("i", 1)) == ("control", "B", 1):
                name = "at_s" if "at_s" in row else "first_token_s"
                row[name] -= 0.5

    rows(folder, "tokens", shift)
    rows(folder, "requests", shift)


def other_outcome(folder: Path) -> None:
    rows(folder, "requests", lambda found: found[-1].update(outcome="stalled", error="nothing moved"))


def other_seed(folder: Path) -> None:
    rows(folder, "requests", lambda found: found[-1].update(seed=1))


def no_polls(folder: Path) -> None:
    (folder / "slots.jsonl").write_text("")


def broken_line(folder: Path) -> None:
    lines = (folder / "slots.jsonl").read_text().splitlines()
    (folder / "slots.jsonl").write_text("\n".join([*lines[:9], lines[9][:40], *lines[10:]]))


def other_arm(folder: Path) -> None:
    record(folder, lambda run: run["arms"].pop("control"))


def longer_load(folder: Path) -> None:
    record(folder, lambda run: run["arms"]["treatment"].update(load_end_s=0.5))


def other_prompt(folder: Path) -> None:
    record(folder, lambda run: run["arms"]["treatment"]["prompt_tokens"].update(A=7))


def other_build(folder: Path) -> None:
    record(folder, lambda run: run["parameters"].update(a_tokens="many"))


def painted_notebook(folder: Path) -> None:
    path = folder / "executed.ipynb"
    path.write_text(path.read_text().replace("Verdict: supported", "Verdict: refuted"))


def painted_observation(folder: Path) -> None:
    path = folder / "executed.ipynb"
    path.write_text(path.read_text().replace("A got", "A never got"))


def empty_notebook(folder: Path) -> None:
    nbformat.write(new_notebook(cells=[new_code_cell("top")]), folder / "executed.ipynb")


def no_notebook_at_all(folder: Path) -> None:
    (folder / "executed.ipynb").write_text("<html>")


TAMPERING: list[tuple[Change, str]] = [
    (flip_verdict, "run.json says refuted, its rows say supported"),
    (flip_check, "because.status: run.json has 'refuted', its rows give 'supported'"),
    (better_words, "joined.observed: run.json has \"after B's first token A got 999"),
    (better_number, "joined.numbers.B.tokens_after: run.json has 999, its rows give "),
    (drop_check, "check because is not in run.json"),
    (drop_token, "tokens in requests.jsonl and"),
    (earlier_first_token, "because."),
    (other_outcome, "run.json says supported, its rows say inconclusive"),
    (other_seed, "B of control was planned with seed"),
    (no_polls, "run.json says supported, its rows say"),
    (broken_line, "line 10 of slots.jsonl is no row: nothing after it was read"),
    (other_arm, "requests.jsonl has rows of control, an arm that run.json doesn't know"),
    (longer_load, "A of treatment ran outside the time in which its load ran"),
    (other_prompt, "A of treatment has a prompt of 7 tokens in run.json, and the server processed"),
    (other_build, "the verdict can't be recomputed: a_tokens = 'many' can't be used"),
    (painted_notebook, "executed.ipynb shows refuted, the rows of the record say supported"),
    (painted_observation, "as observed of check joined, the rows of the record give"),
    (empty_notebook, "executed.ipynb shows no verdict"),
    (no_notebook_at_all, "executed.ipynb can't be read as a notebook"),
]


@pytest.mark.parametrize(("change", "words"), TAMPERING, ids=lambda value: getattr(value, "__name__", ""))
def test_what_was_changed_is_found_though_the_manifest_fits(content: Path, change: Change, words: str) -> None:
    found = answer(content, change)
    assert not found.ok
    assert any(line.startswith("DIFFERS: ") and words in line for line in found.lines), found.lines


@pytest.mark.parametrize("content", [HELD], indirect=True)
def test_a_refuted_run_painted_as_supported_everywhere_is_found(content: Path) -> None:
    def paint(folder: Path) -> None:
        for path in (folder / "run.json", folder / "executed.ipynb"):
            path.write_text(path.read_text().replace("refuted", "supported"))

    lines = answer(content, paint).lines
    assert "DIFFERS: run.json says supported, its rows say refuted" in lines
    assert any("executed.ipynb shows supported, the rows of the record say refuted" in line for line in lines)


@pytest.mark.parametrize("content", [FULL], indirect=True)
def test_log_lines_are_counted_anew(content: Path) -> None:
    def more(folder: Path) -> None:
        record(folder, lambda run: run["arms"]["together"]["log_lines"].update(exceeded=5))

    assert any("log_lines.exceeded: run.json counted" in line for line in answer(content, more).lines)


def test_a_run_that_broke_off_is_what_it_says_and_no_notebook_may_say_more(content: Path) -> None:
    def broke_off(folder: Path) -> None:
        record(folder, lambda run: run.update(verdict={"status": "not_run", "checks": []}))
        with (folder / "tokens.jsonl").open("a") as file:
            file.write('{"arm": "contr')

    assert answer(content, broke_off).lines[2:] == [
        "it came to no verdict, and says so: nothing was judged",
        "DIFFERS: executed.ipynb shows a verdict, and run.json has none",
    ]
    nbformat.write(new_notebook(cells=[nbformat.v4.new_markdown_cell("not found")]), content / "executed.ipynb")
    assert answer(content, lambda folder: None).ok


def test_a_home_folder_that_a_pack_hides_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    assert same_text("in ~/lab", "in /home/somebody/lab")
    assert not same_text("in /home/somebody/lab", "in ~/lab")
    assert not same_text("~/a", "/home/other/a")


# --- packs that were altered --------------------------------------------------------------------------------


def altered_file(folder: Path) -> None:
    with (folder / "report.html").open("a") as file:
        file.write("!")


def missing_file(folder: Path) -> None:
    (folder / "memory.jsonl").unlink()


def added_file(folder: Path) -> None:
    (folder / "more.txt").write_text("")


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def odd_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schema": 1, "files": {"run.json": 3}}')


def later_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schema": 2, "files": {}}')


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (altered_file, "report.html was altered"),
        (missing_file, "memory.jsonl is missing"),
        (added_file, "more.txt is not in its manifest.json: it was added"),
        (no_manifest, "there is no manifest.json in it"),
        (odd_manifest, "its manifest.json can't be read: TypeError"),
        (later_manifest, "its manifest.json has schema 2"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pack_that_was_altered_is_refused(content: Path, change: Change, words: str) -> None:
    found = answer(content, change, sealed=False)
    assert not found.ok
    assert found.lines[0] == "pack.zip is not what was packed: refused"
    assert any(words in line for line in found.lines[1:])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run.json", "'run.json' is in it 2 times"),
        ("RUN.JSON", "'run.json' is in it 2 times"),
        ("../escaped.txt", "'../escaped.txt' is no plain file name"),
        ("/tmp/escaped.txt", "is no plain file name"),
        ("..", "'..' is no plain file name"),
        ("folder/file", "is no plain file name"),
        ("C:\\file", "is no plain file name"),
        ("a\nb", "is no plain file name"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_could_go_anywhere_are_refused_before_anything_is_written(
    content: Path, name: str, words: str
) -> None:
    path = packed(content, content.parent / "pack.zip")
    with zipfile.ZipFile(path, "a") as pack:
        pack.writestr(name, "x")
    scratch = content.parent / "scratch"
    scratch.mkdir()
    assert any(words in text for text in unpacking.unpack(path, scratch))
    assert not list(scratch.iterdir())
    assert not verify_run(path).ok
    assert not list(content.parent.glob("escaped*"))


def test_links_bombs_and_crowds_are_refused(content: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(content, content.parent / "pack.zip")
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr(link, "/etc/passwd")
    assert "'link' is a link or encrypted" in verify_run(path).lines[1]
    monkeypatch.setattr(unpacking, "MAX_BYTES", 10_000)
    assert "more than the 10,000 that are read" in verify_run(path).lines[1]
    monkeypatch.setattr(unpacking, "MAX_MEMBERS", 5)
    assert "more than the 5 that are read" in verify_run(path).lines[1]


def test_a_member_that_lies_about_its_size_writes_no_more_than_that(content: Path) -> None:
    (content / "bomb").write_bytes(b"0" * 1_000_000)
    path = packed(content, content.parent / "pack.zip")
    real, claimed = (number.to_bytes(4, "little") for number in (1_000_000, 1_000))
    path.write_bytes(path.read_bytes().replace(real, claimed))
    scratch = content.parent / "scratch"
    scratch.mkdir()
    assert unpacking.unpack(path, scratch)
    assert not (scratch / "bomb").is_file() or (scratch / "bomb").stat().st_size <= 1_000


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.98])
def test_half_a_pack_is_refused(content: Path, keep: float) -> None:
    path = packed(content, content.parent / "pack.zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    assert "it can't be unpacked" in verify_run(path).lines[1]


def test_flipped_bytes_are_found_wherever_they_are(content: Path) -> None:
    path = packed(content, content.parent / "pack.zip")
    whole = path.read_bytes()
    for place in range(100, len(whole) - 100, len(whole) // 12):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x20]) + whole[place + 1 :])
        assert not verify_run(path).ok, place


def test_what_is_no_run_is_a_wrong_argument(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.zip"):
        with pytest.raises(ParameterError, match="there is no recorded run in"):
            verify_run(path)
    (tmp_path / "page.html").write_text("")
    seal(tmp_path)
    with pytest.raises(ParameterError, match="holds no run"):
        verify_run(packed(tmp_path, tmp_path.parent / f"{tmp_path.name}.zip"))


def test_an_altered_pack_is_not_opened_for_a_replay_either(content: Path) -> None:
    altered_file(content)
    with pytest.raises(AlteredError, match=r"report\.html was altered"), opened(packed(content, content.parent / "p")):
        pass


def test_a_pack_gives_the_same_rows_as_its_folder(content: Path) -> None:
    with opened(packed(content, content.parent / "pack.zip")) as folder:
        assert read_run(folder) == read_run(content)
    assert not folder.exists()
