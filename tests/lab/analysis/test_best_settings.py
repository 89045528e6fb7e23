import math
import sys
from typing import Any

import pytest

from lab.records.synthetic_records import digest, make_record, tidy
from weightclip.lab.analysis.best import as_presets, best_settings, display_setting, paper_setting, setting_notes
from weightclip.lab.registry import experiments
from weightclip.lab.sweep.grid import best

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def rows(*records: Any, **options: Any) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in best_settings(tidy(*records), **options).to_dicts()}


def test_the_papers_setting_is_recognized() -> None:
    found = rows(make_record((0.7,), lr=0.001), make_record((0.1,), lr=0.1))
    assert (found["sgd"]["same"], found["sgd"]["paper_score"]) == (True, 0.7)


def test_another_setting_is_compared_with_the_score_of_the_papers_setting() -> None:
    found = rows(make_record((0.7,), lr=0.001), make_record((0.8,), lr=0.1))["sgd"]
    assert (found["lr"], found["score"], found["same"], found["paper_score"]) == (0.1, 0.8, False, 0.7)


def test_the_papers_setting_may_be_missing() -> None:
    found = rows(make_record(lr=0.1))["sgd"]
    assert (found["same"], found["paper_score"]) == (False, None)


@pytest.mark.parametrize("other", [{"method": "sgd+l2"}, {"problem": "stationary-mnist"}])
def test_some_methods_and_problems_are_missing_from_the_paper(other: dict[str, str]) -> None:
    (found,) = rows(make_record(**other)).values()
    assert (found["same"], found["paper_score"]) == (None, None)


def test_methods_are_in_the_papers_order_followed_by_others() -> None:
    methods = ["sgd+wc", "lion", "adam", "sgd", "alpha"]
    assert list(rows(*(make_record(method=method) for method in methods))) == ["sgd", "adam", "sgd+wc", "alpha", "lion"]


def test_the_trend_is_computed_for_the_best_setting() -> None:
    rising = [make_record([0.5 + number / 100 + seed / 10 for number in range(8)], seed=seed) for seed in (0, 1)]
    falling = [make_record([0.1 - number / 100 for number in range(8)], lr=0.1, seed=seed) for seed in (0, 1)]
    found = rows(*rising, *falling)["sgd"]
    assert (found["slope"], found["verdict"]) == (pytest.approx(1.0), "rising")


def test_the_criterion_determines_the_best_setting() -> None:
    records = make_record((0.9, 0.5), lr=0.1), make_record((0.1, 0.6), lr=0.01)
    assert rows(*records)["sgd"]["lr"] == 0.1
    assert rows(*records, criterion="final")["sgd"]["lr"] == 0.01


def test_constant_settings_are_displayed_only_if_they_have_a_field() -> None:
    table = tidy(
        *(
            make_record(lr=lr, kappa=2.0, settings={"beta1": beta, "eps": 1e-8}, method="adam+wc")
            for lr, beta in ((0.1, 0.9), (0.1, 0.5))
        )
    )
    (row,) = best_settings(table).to_dicts()
    assert display_setting(row, table) == {"lr": 0.1, "kappa": 2.0, "settings.beta1": 0.5}


def test_the_papers_setting_is_ordered_like_ours() -> None:
    (row,) = rows(make_record(method="sgd+sp", decay=0.5, sigma=0.5)).values()
    assert paper_setting(row) == {"lr": 0.001, "decay": 0.01, "sigma": 0.1}
    assert list(paper_setting(row) or ()) == ["lr", "decay", "sigma"]
    assert paper_setting({**row, "paper_setting": None}) is None


@pytest.mark.parametrize(
    ("value", "worse"),
    [
        *(
            (True, False),
            (False, True),
            ("plain", "other"),
            ('a "quoted" \\ name', ""),
            ("ä 😀 \x7f \n", "a"),
            ("", "a"),
        ),
        *((3, 4), (-1, 1), (0.1, 0.2), (1e-5, 1.0), (1e16, 1.0), (math.inf, 1.0), (-math.inf, 1.0)),
    ],
)
def test_presets_contain_values_of_any_type(value: Any, worse: Any) -> None:
    table = tidy(
        *(
            make_record((score,), method="my method", settings={"an odd name": one})
            for one, score in ((value, 0.9), (worse, 0.1))
        )
    )
    presets = tomllib.loads(as_presets(best_settings(table), table))
    found = presets["best"]["input-permuted-mnist"]["my method"]
    assert found == {"lr": 0.001, "settings": {"an odd name": value}}
    assert type(found["settings"]["an odd name"]) is type(value)


def test_setups_with_the_same_best_setting_share_a_preset_and_others_raise_an_error() -> None:
    agreeing = tidy(make_record(lr=0.1), make_record(lr=0.1, hidden=[50]))
    presets = tomllib.loads(as_presets(best_settings(agreeing), agreeing))
    assert presets == {"best": {"input-permuted-mnist": {"sgd": {"lr": 0.1}}}}
    other = tidy(make_record(lr=0.1), make_record(lr=0.2, hidden=[50]))
    with pytest.raises(
        ValueError, match=r"input-permuted-mnist: got two best settings of sgd \(lr = 0\.[12]; .*--where"
    ):
        as_presets(best_settings(other), other)


def test_presets_can_be_swept() -> None:
    table = tidy(
        make_record((0.1,)),
        make_record((0.1,), method="adam+wc", lr=1e-5, kappa=math.inf, settings={"beta1": 0.5}),
        make_record((0.0,), method="adam+wc", lr=1e-5, kappa=math.inf, settings={"beta1": 0.9}),
    )
    presets = tomllib.loads(as_presets(best_settings(table), table))
    streaming = experiments()["streaming"]
    assert best(streaming, "input-permuted-mnist", ("sgd", "adam+wc"), presets, {}) == [
        {"method": "sgd", "lr": 0.001},
        {"method": "adam+wc", "lr": 1e-5, "kappa": math.inf, "settings.beta1": 0.5},
    ]


def test_versions_of_a_rule_are_distinguished_by_a_hash() -> None:
    table = tidy(make_record(method="lion", rules="old"), make_record((0.9, 0.9), method="lion", rules="new", seed=0))
    (row,) = best_settings(table).to_dicts()
    assert display_setting(row, table)["rules"] == digest("new")[:6]
    alone = tidy(make_record(method="lion", rules="old"))
    assert "rules" not in display_setting(best_settings(alone).to_dicts()[0], alone)


def test_a_run_with_one_truncated_task_is_included_with_a_note() -> None:
    table = tidy(*(make_record([0.5], columns={"cut_short": [True]}, seed=seed) for seed in range(2)))
    (row,) = best_settings(table).to_dicts()
    assert row["score"] == 0.5
    assert any("the last task is cut short" in note for note in setting_notes(row))
    (whole,) = best_settings(tidy(make_record([0.5, 0.6]))).to_dicts()
    assert not any("cut short" in note for note in setting_notes(whole))


def test_records_of_older_versions_are_marked_by_their_samples() -> None:
    old = make_record([0.5, 0.6, 0.9], period=10, steps=25)
    new = make_record([0.5, 0.6, 0.9], period=10, steps=25, seed=1, columns={"cut_short": [False, False, True]})
    (row,) = best_settings(tidy(old, new), criterion="final", last=1).to_dicts()
    assert row["score"] == pytest.approx(0.6)  # the third task of both runs is excluded
