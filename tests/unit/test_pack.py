"""The pack for a ticket, and its redaction: a secret planted wherever one can be, and every byte searched."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from labkit.analyze.slot_escalation.readings import answer_reading
from labkit.errors import ParameterError, RecordError
from labkit.present import hidden, pack
from labkit.present.redact import Hide, redact, redact_json
from tests.recorded import write_run

ENVIRONMENT, KEY_FILE, USERINFO = "env-Secret-51c0", "file+Secret/77e1==", "url-Secret-9a"
HOST, USER, HOME = "workstation-17", "hanako", "/home/hanako"
SECRETS = (ENVIRONMENT, KEY_FILE, USERINFO, HOST, USER, HOME)
PROMPT, ANSWER = "Tell me about my landlord Mr Tanaka", "Mr Tanaka of flat 4 is a fine landlord"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a user, a name and keys; and its outputs/."""
    (tmp_path / "key.txt").write_text(f"{KEY_FILE}\n")
    monkeypatch.setenv("LABKIT_API_KEY", ENVIRONMENT)
    monkeypatch.setenv("LABKIT_API_KEY_FILE", str(tmp_path / "key.txt"))
    monkeypatch.setenv("PIP_INDEX_URL", f"https://me:{USERINFO}@pypi.example/simple")
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("USER", USER)
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    monkeypatch.setattr(hidden.getpass, "getuser", lambda: USER)
    monkeypatch.setattr(pack, "outputs_folder", lambda _: tmp_path / "outputs")
    return tmp_path / "outputs"


def planted(outputs: Path) -> Path:
    """Return a run with each secret in each kind of file, in several spellings."""
    everything = f"{' '.join(SECRETS)} https://me:{USERINFO}@{HOST}:8080/v1 Authorization: Bearer {ENVIRONMENT}"
    awkward = f'{everything} "{KEY_FILE}" {base64.b64encode(ENVIRONMENT.encode()).decode()} file%2BSecret%2F77e1%3D%3D'
    error = {"name": "boom", "error": {"message": f"401 from http://u:{USERINFO}@{HOST}/ with key {KEY_FILE}"}}
    folder = write_run(
        outputs, title=f"on {HOST} as {USER}", printed=awkward, log=f"{awkward}\nquoted: {PROMPT}\n",
        arms={"treatment": {"server": {"argv": ["llama-server", "--api-key", ENVIRONMENT], "base_url": f"http://{HOST}"},
                            "notes": error}},
        provenance={"executable": f"{HOME}/venv/bin/python", "who": everything, awkward: "a field's name"},
    )  # fmt: skip
    row = {"label": "A", "prompt": PROMPT, "text": ANSWER, "error": f"{awkward} {PROMPT}", "at_s": 0.12345678901234}
    (folder / "requests.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row)[:90])
    (folder / "trace.bin").write_bytes(b"\0\1")
    return folder


def bytes_of(path: Path) -> dict[str, bytes]:
    """Return every file in a zip, what is packed in base64 in it unpacked too."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    for name, data in list(found.items()):
        for number, inside in enumerate(re.findall(rb"base64,([A-Za-z0-9+/=]+)", data)):
            found[f"{name} image {number}"] = base64.b64decode(inside)
    return found


def test_no_planted_secret_is_in_any_byte_of_the_pack(here: Path) -> None:
    made, skipped = pack.pack(planted(here))
    found = bytes_of(made)
    assert {"report.html", "summary.md", "03_late_arrival.ipynb", "run.json", "requests.jsonl"} <= set(found)
    assert "report.html image 0" in found
    assert skipped == ["trace.bin, which is no text"]
    for secret in (*SECRETS, PROMPT, ANSWER, "Tanaka"):
        for form in (secret, json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()):
            assert not [name for name, data in found.items() if form.encode() in data], form
    assert not [name for name, data in found.items() if b"file%2BSecret" in data]


def test_the_pixels_of_a_picture_are_drawn_anew_from_what_is_redacted(here: Path) -> None:
    made, _ = pack.pack(planted(here))
    with zipfile.ZipFile(made) as archive:
        node = json.loads(archive.read("03_late_arrival.ipynb"))
    bundles = [out.get("data", {}) for cell in node["cells"] for out in cell.get("outputs", [])]
    (image,) = [bundle["image/png"] for bundle in bundles if "image/png" in bundle]
    assert base64.b64decode("".join(image)).startswith(b"\x89PNG\r\n")  # and not the stand-in of the test's notebook


def test_the_answer_that_01_reads_out_is_left_out_though_no_record_has_it(here: Path) -> None:
    reading = answer_reading("Ships “rely” on Tanaka", 2)
    folder = write_run(here, printed=f"<p>{reading}</p> and then")
    assert "Tanaka" in reading
    assert not [name for name, data in bytes_of(pack.pack(folder)[0]).items() if b"Tanaka" in data]
    assert b"Tanaka" in bytes_of(pack.pack(folder, with_text=True)[0])["report.html"]


def test_texts_are_kept_on_request_and_secrets_are_not(here: Path) -> None:
    made, _ = pack.pack(planted(here), with_text=True)
    found = bytes_of(made)
    assert PROMPT.encode() in found["requests.jsonl"]
    assert ANSWER.encode() in found["requests.jsonl"]
    assert not [name for name, data in found.items() if ENVIRONMENT.encode() in data or USER.encode() in data]


def test_numbers_and_untouched_lines_stay_as_they_were(here: Path) -> None:
    folder = write_run(here)
    line = '{"arm": "treatment",  "at_s": 0.10000000000000001, "n": 12345678901234567890}\n'
    (folder / "tokens.jsonl").write_text(line)
    made, _ = pack.pack(folder)
    assert bytes_of(made)["tokens.jsonl"].decode() == line


def test_the_manifest_names_every_other_member_with_its_hash(here: Path) -> None:
    made, _ = pack.pack(write_run(here))
    found = {name: data for name, data in bytes_of(made).items() if " image " not in name}
    manifest = json.loads(found.pop("manifest.json"))
    assert manifest["schema"] == 1
    assert manifest["files"] == {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in found.items()
    }
    assert made.name == "03_late_arrival-20261130T120000Z-abcd.zip"


def test_what_can_not_be_hidden_is_not_packed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "redact", lambda text, _: text)
    with pytest.raises(RecordError, match="would still hold what is to be hidden: nothing was packed"):
        pack.pack(planted(here))
    assert not list(here.glob("*.zip"))


def test_a_run_is_found_by_folder_name_and_notebook(here: Path) -> None:
    folder = write_run(here)
    assert pack.find_run(str(folder)) == folder
    assert pack.find_run(folder.name) == folder
    assert pack.find_run(str(folder / "03_late_arrival.ipynb")) == folder
    with pytest.raises(ParameterError, match="nowhere is no run"):
        pack.find_run("nowhere")


def test_a_run_without_its_notebook_is_packed_with_a_word_about_it(here: Path) -> None:
    folder = write_run(here)
    (folder / "03_late_arrival.ipynb").unlink()
    made, left = pack.pack(folder)
    found = bytes_of(made)
    assert left == [pack.NO_NOTEBOOK]
    assert b"was not found; the record is complete" in found["report.html"]
    assert b"Verdict: supported" in found["report.html"]


def test_an_executed_notebook_that_was_saved_anywhere_is_packed_as_it_is_named(here: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "desk" / "out.ipynb"
    elsewhere.parent.mkdir()
    folder = write_run(here, printed="what this very notebook printed")
    (folder / "03_late_arrival.ipynb").rename(elsewhere)
    made, left = pack.pack(pack.find_run(str(elsewhere)), notebook=elsewhere)
    assert left == []
    assert b"what this very notebook printed" in bytes_of(made)["03_late_arrival.ipynb"]
    shutil.rmtree(folder)
    with pytest.raises(ParameterError, match="no run folder that it names is here"):
        pack.find_run(str(elsewhere))


# --- the pure part ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("http://me:pw1@box:80/x", "http://[redacted]@box:80/x"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("llama-server --api-key abc123 -np 4", "llama-server --api-key [redacted] -np 4"),
        ("llama-server --hf-token=abc123", "llama-server --hf-token=[redacted]"),
        ("HF_TOKEN=abc LLAMA_API_KEY=def x", "HF_TOKEN=[redacted] LLAMA_API_KEY=[redacted] x"),
        ("GET /v1?a=1&api_key=abc&b=2", "GET /v1?a=1&api_key=[redacted]&b=2"),
        ('{"password": "abc"}', '{"password": "[redacted]"}'),
        ("token hf_abcdefghijklmnopqrst", "token [redacted]"),
        ("x\n-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\ny", "x\n[redacted]\ny"),
        ("/home/someone/models/a.gguf and /Users/eve/x", "~/models/a.gguf and ~/x"),
        ("loading '/root/.cache/labkit/x.gguf'", "loading '~/.cache/labkit/x.gguf'"),
    ],
)
def test_shapes_of_secrets_are_known_wherever_they_come_from(text: str, kept: str) -> None:
    assert redact(text, []) == kept
    assert redact(kept, []) == kept


@pytest.mark.parametrize(
    "text",
    [
        "256 tokens = 4 x 64, a token a step",
        "--max-tokens 5 --parallel 2",
        "a basic question; the bearer of news",
        "tests/homework/root/x",
        "params.key = value",
        "predicted_tokens_left: int = 200",
    ],
)
def test_plain_words_stay(text: str) -> None:
    assert redact(text, []) == text


def test_a_name_is_hidden_as_a_word_and_not_inside_another() -> None:
    hides = [Hide("ann", "[user]", word=True)]
    assert redact("ann's Ann_venv, annual planner", hides) == "[user]'s [user]_venv, annual planner"


def test_names_of_fields_lose_secrets_alone() -> None:
    hides = [Hide("status", "[user]", word=True), Hide("s3cret-s3cret")]
    given = {"status": "status", "s3cret-s3cret": 1, "the status of": 2, "image/png": "status+", "n_status": 3}
    assert redact_json(given, hides) == {
        "status": "[user]", "[redacted]": 1, "the [user] of": 2, "image/png": "status+", "n_status": 3,
    }  # fmt: skip


def test_a_longer_secret_is_not_cut_by_a_shorter_one() -> None:
    assert redact("abcdefgh", [Hide("abc", "x"), Hide("abcdefgh", "y")]) == "y"


def test_a_short_word_is_hidden_by_what_is_to_be_hidden_now_not_by_what_was_before() -> None:
    assert [redact("hanako", hides) for hides in ([], [Hide("hanako", word=True)], [])] == [
        "hanako", "[redacted]", "hanako",
    ]  # fmt: skip
