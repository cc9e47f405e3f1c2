import pytest

import labkit as lab
from labkit.engine.flags import FIXED, OPTIONS, from_argv, from_environment, start_values, to_argv, to_attributes
from labkit.errors import EngineError

START = {"model_path": "/m.gguf", "alias": "lab", "port": 1234}


def argv(**settings: object) -> list[str]:
    return to_argv(start_values(lab.ServerSettings(**settings), **START))[0]


def attributes(**settings: object) -> dict[str, object]:
    values = start_values(lab.ServerSettings(**settings), **START)
    return {item["names"][0]: item["value"] for item in to_attributes(values)}


def test_every_flag_that_matters_is_always_passed() -> None:
    line = " ".join(argv())
    for words in (
        "--model /m.gguf",
        "--alias lab",
        "--host 127.0.0.1",
        "--port 1234",
        "--ctx-size 4096",
        "--parallel 2",
        "--kv-unified",
        "--cont-batching",
        "--batch-size 2048",
        "--ubatch-size 512",
        "--slots",
        "--metrics",
        "-lv 4",
    ):
        assert words in line


def test_switches_have_an_opposite() -> None:
    off = argv(kv_unified=False, cont_batching=False, slots_endpoint=False, metrics_endpoint=False)
    assert {"--no-kv-unified", "--no-cont-batching", "--no-slots"} <= set(off)
    assert not {"--kv-unified", "--cont-batching", "--slots", "--metrics"} & set(off)


def test_auto_leaves_slots_and_kv_mode_to_the_server() -> None:
    auto = argv(parallel="auto", kv_unified=False)
    assert not {"--parallel", "--kv-unified", "--no-kv-unified"} & set(auto)
    assert attributes(parallel="auto")["n_parallel"] == -1


def test_the_embedded_engine_is_told_nothing_that_is_not_given() -> None:
    told = to_attributes({"alias": "a", "port": 1, "threads": None})
    assert [item["names"][0] for item in told] == ["model_alias", "port"]


def test_extra_arguments_are_kept_and_cannot_override_the_table() -> None:
    assert argv(extra_args=["--mlock"])[-1] == "--mlock"
    for arg in ("--parallel", "--ctx_size", "--port=9"):
        with pytest.raises(EngineError, match="labkit passes it itself"):
            argv(extra_args=[arg, "9"])


@pytest.mark.parametrize("arg", ["-c", "-np", "-nocb", "-no-kvu", "--webui", "-lv", "--log-verbosity"])
def test_other_spellings_are_refused_in_extra_arguments_too(arg: str) -> None:
    with pytest.raises(EngineError, match=f"can't set {arg}: labkit passes it itself"):
        argv(extra_args=[arg])


def test_a_command_line_is_read_back_as_it_was_written() -> None:
    asked = lab.ServerSettings(parallel=3, kv_unified=False, cont_batching=False, threads=2, cache_type_k="q8_0")
    values, rest = from_argv(to_argv(start_values(asked, **START), binary="/opt/llama-server")[0])
    assert rest == ["/opt/llama-server"]
    written = start_values(asked, **START)
    assert values == {name: written[name] for name in values}
    assert {"parallel", "kv_unified", "cont_batching", "slots_endpoint", "cache_type_k", "port"} <= set(values)


def test_short_spellings_variables_and_unknown_words_are_told_apart() -> None:
    line = "LLAMA_ARG_N_PARALLEL=8 llama-server -c 512 -np 2 -nocb -ngl auto --temp 0.7 --ctx_size 1024"
    values, rest = from_argv(line.split())
    assert values == {"parallel": 2, "ctx_size": 1024, "cont_batching": False, "gpu_layers": "auto"}
    assert rest == ["LLAMA_ARG_N_PARALLEL=8", "llama-server", "--temp", "0.7"]


def test_variables_act_as_flags() -> None:
    said = {"LLAMA_ARG_KV_UNIFIED": "1", "LLAMA_ARG_CONT_BATCHING": "off", "LLAMA_ARG_CTX_SIZE": "77", "HOME": "/"}
    assert from_environment(said) == {"kv_unified": True, "cont_batching": False, "ctx_size": 77}


def test_flags_that_a_binary_does_not_know_are_left_out_and_named() -> None:
    known = frozenset(flag for option in OPTIONS for flag in option.on + option.off) - {"--no-ui", "--cors-origins"}
    line, left_out = to_argv(start_values(lab.ServerSettings(), **START), known=known)
    assert left_out == ["--cors-origins"]
    assert "--no-webui" in line


def test_the_embedded_engine_says_that_it_has_no_command_line() -> None:
    with pytest.raises(EngineError, match="takes no extra_args"):
        attributes(extra_args=["--mlock"])


def test_every_server_setting_has_its_place_in_the_table() -> None:
    not_flags = {"engine", "model", "extra_args"}
    in_table = {option.field for option in OPTIONS} - set(FIXED) - {"model_path", "alias"}
    assert in_table == set(lab.ServerSettings.model_fields) - not_flags


def test_flags_are_spelled_nowhere_else(project) -> None:
    spelled = [option.flag for option in OPTIONS if option.flag.startswith("--")]
    for path in (project / "labkit").rglob("*.py"):
        # effective names them to the reader; the labkit command has options of its own
        if path.name not in ("flags.py", "effective.py", "cli.py"):
            code = "\n".join(line for line in path.read_text().splitlines() if '"--' in line or "'--" in line)
            assert not [flag for flag in spelled if f'"{flag}"' in code], path


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_enums_travel_as_names(kind: str) -> None:
    assert attributes(cache_type_k=kind)["cache_type_k"] == {"ggml_type": kind}
