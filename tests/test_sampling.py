import itertools

import pytest
from sampling import sampled


def product(**sizes):
    rows = itertools.product(*map(range, sizes.values()))
    return [dict(zip(sizes, row, strict=True)) for row in rows]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    "sizes",
    [{"a": 5, "b": 15}, {"a": 15, "b": 2}, {"a": 2, "b": 2}, {"a": 4, "b": 1, "c": 3}],
    ids=str,
)
def test_each_value_of_each_parameter_is_sampled(sizes, n):
    cases = product(**sizes)
    chosen = sampled(cases, n)
    for name, size in sizes.items():
        assert {cases[i][name] for i in chosen} == set(range(size))
    assert len(chosen) < len(cases) / n + sum(sizes.values())


def test_parameters_that_change_together_count_once():
    cases = [{"x": i, "y": str(i), "z": -i, "other": j} for i in range(6) for j in range(6)]
    expected = {i for i, case in enumerate(cases) if (case["x"] + case["other"]) % 3 == 0}
    assert sampled(cases, 3) == expected


def test_each_value_in_a_table_of_pairs_is_sampled():
    cases = [{"name": i, "value": value} for i in range(4) for value in "abcde"[i:]]
    chosen = sampled(cases, 4)
    assert {cases[i]["name"] for i in chosen} == set(range(4))
    assert {cases[i]["value"] for i in chosen} == set("abcde")
    assert len(chosen) < 7


def test_every_nth_value_of_a_single_parameter_is_sampled():
    assert sampled(product(a=8), 3) == {0, 3, 6}
