"""For any flags a launcher makes a config or prints a short error; no network is built."""

import absl.flags
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching import LAUNCHERS, config_of, presets_of

from identity_matters.errors import UserError
from launch import config_flags
from launch.check_theory import CheckConfig

NUMBERS = ["0", "-1", "1", "3", "0.5", "1e3", "1e400", "-1e-300", "inf", "-inf", "nan", "4294967296", "9" * 25]
WORDS = ["", " ", "true", "None", "paper", "$\\foo$", "a b", "ü", "\n", "x\nrm -rf y", "\x00", "--", ",", "1,,2"]
VALUES = st.one_of(
    st.sampled_from(NUMBERS + WORDS), st.lists(st.sampled_from(NUMBERS), max_size=4).map(",".join), st.text(max_size=8)
)


@pytest.mark.parametrize("max_examples", [20, pytest.param(500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_flags_of_any_value_make_a_config_or_a_line(name, max_examples):
    fields = [field.name for field, *_ in config_flags.flag_fields(next(iter(presets_of(name).values())))]

    @settings(max_examples=max_examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data):
        names = data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3))
        flags = [f"--{data.draw(st.sampled_from(['', 'no']))}{field}={data.draw(VALUES)}" for field in names]
        try:
            config_of(name, *flags)
        except (UserError, absl.flags.Error) as error:
            assert str(error).strip()

    check()


@pytest.mark.parametrize("names, has_flag", [("a", False), ("ab", True)])
def test_several_presets_are_chosen_by_a_flag(names, has_flag):
    presets = dict.fromkeys(names, CheckConfig())
    values = config_flags.define(presets, has_run_dir=False)
    described = [flag for flag, _ in config_flags.flag_entries(presets, values, "")]
    assert ("preset" in values) is ("--preset=a" in described) is has_flag


def test_a_leading_tilde_of_every_path_is_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")

    def held(name, **given):
        values = config_flags.define(presets_of(name), has_run_dir=True)
        config_flags.parse(values, ["", *(f"--{flag}={path}" for flag, path in given.items())])
        return [values[flag].value for flag in given]

    assert held("train", run_dir="~/y2", data_dir="~", npz="a/~/b~") == ["/home/ann/y2", "/home/ann", "a/~/b~"]
    assert held("report", runs="~/a, ~/b,c") == ["/home/ann/a, /home/ann/b,c"]
    assert held("plot", beside="c,~/d", title="~/d") == ["c,/home/ann/d", "~/d"]


@pytest.mark.parametrize("columns, width", [(300, 110), (90, 90), (20, 60)])
def test_help_is_as_wide_as_the_terminal_but_no_wider_than_reads_well(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    for letters in (1, 2):  # words of one width and of another reach both an odd and an even end
        lines = config_flags.wrapped_entries("manual", [("--a", "a" * letters + " a" * 200)]).splitlines()
        assert max(map(len, lines)) == width - (letters == 1)
