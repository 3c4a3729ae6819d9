"""launch.descent_map: it writes, goes on where it stopped, and draws."""

import pytest

from identity_matters.runs.tables import read_rows
from launch import descent_map as launcher
from launch import plot
from theory import figures
from theory.descent import target_map as descent_map


@pytest.fixture
def small_map(monkeypatch):
    """Four quick jobs in place of the map, and two quick figures; the list of the jobs that were run."""
    jobs = [
        descent_map.Job(target, "zero", "descent", depth, 6) for target in ("rotated", "singular") for depth in (1, 2)
    ]
    run_job, done = descent_map.run_job, []

    def counted(job, *a, **k):
        done.append(job)
        return run_job(job, *a, max_steps=20, **k)

    monkeypatch.setattr(descent_map, "jobs", lambda: jobs)
    monkeypatch.setattr(descent_map, "run_job", counted)
    few = {name: figures.DESCENT_EXPERIMENTS[name] for name in ("eigenvalues", "excess_by_radius")}
    monkeypatch.setattr(figures, "DESCENT_EXPERIMENTS", few)
    return done


@pytest.mark.slow
def test_it_leaves_rows_data_and_pictures_and_a_second_run_computes_nothing(small_map, tmp_path, capsys):
    run_dir = str(tmp_path / "descent")
    config = launcher.MapConfig()
    launcher.main(config, run_dir)
    assert len(read_rows(f"{run_dir}/results.csv")) == 4 * len(descent_map.SPEEDS) and len(small_map) == 4
    names = {path.name for path in (tmp_path / "descent").glob("*.png")}
    assert names == {"eigenvalues.png", "excess_by_radius.png", "map.png"}
    assert "rotated, zero, descent, ℓ = 2, d = 6" in capsys.readouterr().out
    before = (tmp_path / "descent" / "results.csv").read_text()
    launcher.main(config, run_dir)
    assert len(small_map) == 4 and (tmp_path / "descent" / "results.csv").read_text() == before


@pytest.mark.slow
def test_after_a_kill_it_goes_on_behind_the_last_job(small_map, tmp_path, monkeypatch):
    run_dir, counted = str(tmp_path / "descent"), descent_map.run_job
    config = launcher.MapConfig()

    def dies(job, *a, **k):
        if len(small_map) == 2:
            raise KeyboardInterrupt
        return counted(job, *a, **k)

    monkeypatch.setattr(descent_map, "run_job", dies)
    with pytest.raises(KeyboardInterrupt):
        launcher.main(config, run_dir)
    assert len(read_rows(f"{run_dir}/results.csv")) == 2 * len(descent_map.SPEEDS)
    monkeypatch.setattr(descent_map, "run_job", counted)
    launcher.main(config, run_dir)
    assert small_map == descent_map.jobs()
    assert len(read_rows(f"{run_dir}/results.csv")) == 4 * len(descent_map.SPEEDS)


@pytest.mark.slow
def test_plot_draws_the_pictures_again(small_map, tmp_path, capsys):
    run_dir = tmp_path / "descent"
    launcher.main(launcher.MapConfig(), str(run_dir))
    for path in run_dir.glob("*.png"):
        path.unlink()
    capsys.readouterr()
    plot.main(plot.PlotConfig(), str(run_dir))
    assert len(capsys.readouterr().out.split()) == len(list(run_dir.glob("*.png"))) == 3


def test_without_a_run_directory_it_prints_and_writes_nothing(small_map, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    launcher.main(launcher.MapConfig(), None)
    assert capsys.readouterr().out.count("\n") == 4 and not list(tmp_path.iterdir())
