import pytest

from labkit.engine.log import LogFacts, failure, parse_log
from tests.conftest import DATA


def read(name: str) -> str:
    return (DATA / "b10229" / f"{name}.log").read_text()


def test_a_start_log_tells_the_effective_values() -> None:
    facts = parse_log(read("start"))
    assert (facts.n_slots, facts.slot_cells, facts.kv_unified, facts.pool_cells) == (2, 4096, True, 4096)
    assert (facts.batch_size, facts.ubatch_size) == (512, 128)
    assert facts.kv_bytes == 90 * 2**20
    assert facts.devices == ("CPU",)
    assert facts.fitted


def test_buffers_of_all_devices_are_added_and_those_of_a_dry_run_are_not() -> None:
    line = "0.00.1 I sched_reserve: {:>10} compute buffer size = {:8.2f} MiB\n"
    first, second = line.format("CUDA0", 90.0), line.format("CUDA0", 10.0) + line.format("CUDA_Host", 2.5)
    assert parse_log(first + second).compute_bytes == 12.5 * 2**20
    assert parse_log(first + second).compute_by_device == {"CUDA0": 10 * 2**20, "CUDA_Host": 2.5 * 2**20}
    assert parse_log(read("start")).compute_bytes == round(4.38 * 2**20)


def test_a_setting_that_the_engine_lacks_is_named() -> None:
    said = "labkit: this xllamacpp build has none of the attributes kv_unified_per_slot\n"
    assert failure(said) == ("setting", "kv_unified_per_slot")


def test_a_log_that_says_nothing_gives_nothing() -> None:
    assert parse_log("hello\n") == LogFacts()


def test_the_slot_line_of_older_builds_is_read_too() -> None:
    assert parse_log("srv  load_model: initializing slots, n_slots = 4\n").n_slots == 4


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("port_taken", "port", "couldn't bind HTTP server socket"),
        ("missing", "model", "No such file or directory"),
        ("truncated", "model", "model is corrupted or incomplete"),
        ("garbage", "model", "GGUF file is version"),
    ],
)
def test_a_failed_start_is_explained_in_the_logs_own_words(name: str, kind: str, words: str) -> None:
    found, reason = failure(read(name))
    assert found == kind
    assert words in reason


def test_a_death_after_a_healthy_start_is_not_blamed_on_the_model() -> None:
    # every healthy log has lines of llama_model_loader
    assert failure(read("start") + "GGML_ASSERT(x) failed\n")[0] == "other"


def test_a_failure_without_words_is_other() -> None:
    assert failure("") == ("other", "")
