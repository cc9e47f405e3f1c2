import pickle

import pytest

from labkit import errors


def leaves() -> list[type[errors.LabError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.LabError)]


def test_an_error_says_what_why_and_what_to_try() -> None:
    error = errors.ModelError("no such model", why="typo", hint="another name")
    assert str(error) == "no such model: typo. Try: another name"


@pytest.mark.parametrize("kind", leaves())
def test_errors_survive_pickling(kind: type[errors.LabError]) -> None:
    # papermill and process pools hand exceptions across processes
    error = pickle.loads(pickle.dumps(kind("what", why="why", hint="hint")))
    assert type(error) is kind
    assert (error.what, error.why, error.hint) == ("what", "why", "hint")


def test_a_notebook_shows_one_sentence_and_no_frames() -> None:
    assert errors.PlanError("too large", hint="less")._render_traceback_() == ["PlanError: too large. Try: less"]


def test_exit_codes_are_those_of_the_design() -> None:
    assert errors.ParameterError.exit_code == 2
    assert errors.PortInUseError.exit_code == 3
    assert errors.ServerDiedError.exit_code == 5


@pytest.mark.parametrize("kind", leaves())
def test_the_tree_in_the_module_names_every_error(kind: type[errors.LabError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
