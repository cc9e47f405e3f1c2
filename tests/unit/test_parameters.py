import pytest

import labkit as lab
from labkit.errors import ParameterError
from labkit.present.parameters import assigned_names, parameter_cells

TAGGED = "# parameters\nparallel: int = 2  # slots\nkv_unified: bool = True\n"


def run_cells(*cells: str) -> dict[str, object]:
    """Return the namespace of a kernel that ran these cells."""
    namespace: dict[str, object] = {"In": ["", *cells]}
    for cell in cells:
        exec(cell, namespace)
    return namespace


def test_defaults_and_injected_values_are_taken() -> None:
    namespace = run_cells("x = 1", TAGGED, "# Parameters\nparallel = 4\nkv_unified = 'false'\n")
    params = lab.parameters(lab.LateArrival, namespace)
    assert (params.parallel, params.kv_unified) == (4, False)


def test_other_variables_of_the_kernel_do_not_matter() -> None:
    assert lab.parameters(lab.LateArrival, run_cells("ctx_size = -1", TAGGED, "paralel = 3")).ctx_size == 4096


@pytest.mark.parametrize("cells", [(TAGGED, "# Parameters\nparalel = 8\n"), (TAGGED + "paralel: int = 8\n",)])
def test_a_typo_is_refused_with_the_nearest_name(cells: tuple[str, ...]) -> None:
    with pytest.raises(ParameterError, match=r"paralel is not a parameter of this notebook, did you mean parallel\?"):
        lab.parameters(lab.LateArrival, run_cells(*cells))


def test_running_again_in_a_used_kernel_forgets_the_earlier_injection() -> None:
    namespace = run_cells(TAGGED, "# Parameters\nparalel = 8\n", TAGGED)
    assert lab.parameters(lab.LateArrival, namespace).parallel == 2


def test_a_secret_is_refused_and_its_owner_is_told_where_it_has_gone() -> None:
    with pytest.raises(ParameterError, match=r"already written its value into the notebook.*LABKIT_API_KEY"):
        lab.parameters(lab.LateArrival, run_cells(TAGGED, "# Parameters\napi_key = 's3cret'\n"))


def test_outside_a_notebook_a_plain_dict_is_taken_as_it_is() -> None:
    assert lab.parameters(lab.LateArrival, {"parallel": "3"}).parallel == 3
    with pytest.raises(ParameterError, match="paralel"):
        lab.parameters(lab.LateArrival, {"paralel": 3})


def test_a_kernel_without_a_parameters_cell_is_told_so() -> None:
    with pytest.raises(ParameterError, match="no parameters cell was run"):
        lab.parameters(lab.LateArrival, {"In": ["", "import labkit"]})


def test_only_cells_after_the_latest_tagged_one_count() -> None:
    assert parameter_cells(["", "# Parameters\na = 1", TAGGED, "b = 1", "# Parameters\nc = 1"]) == [
        TAGGED,
        "# Parameters\nc = 1",
    ]


def test_names_come_from_plain_and_annotated_assignments() -> None:
    assert assigned_names(["a = 1\nb: int = 2", "a = 3"]) == ["a", "b"]


@pytest.mark.parametrize("line", ["a, b = 1, 2", "if True:\n    a = 1", "print(1)", "x.y = 1"])
def test_a_parameters_cell_that_could_hide_a_typo_is_refused(line: str) -> None:
    with pytest.raises(ParameterError, match="is not `name = value`"):
        assigned_names([line])
