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
    targets = ("rotated", "rotated", "singular", "singular")
    jobs = [descent_map.Job(target, "zero", "descent", depth, 6) for target, depth in zip(targets, (1, 2, 1, 2))]
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
def test_after_a_kill_it_goes_on_behind_the_last_job_draws_and_does_not_compute_again(
    small_map, tmp_path, monkeypatch, capsys
):
    run_dir, config, counted = tmp_path / "descent", launcher.MapConfig(), descent_map.run_job

    def dies(job, *a, **k):
        if len(small_map) == 2:
            raise KeyboardInterrupt
        return counted(job, *a, **k)

    monkeypatch.setattr(descent_map, "run_job", dies)
    with pytest.raises(KeyboardInterrupt):
        launcher.main(config, str(run_dir))
    assert len(read_rows(f"{run_dir}/results.csv")) == 2 * len(descent_map.SPEEDS)
    monkeypatch.setattr(descent_map, "run_job", counted)
    launcher.main(config, str(run_dir))
    assert small_map == descent_map.jobs() and "rotated, zero, descent, ℓ = 2, d = 6" in capsys.readouterr().out
    assert len(read_rows(f"{run_dir}/results.csv")) == 4 * len(descent_map.SPEEDS)
    before = (run_dir / "results.csv").read_text()
    launcher.main(config, str(run_dir))
    assert len(small_map) == 4 and (run_dir / "results.csv").read_text() == before
    pictures = sorted(run_dir.glob("*.png"))
    assert [path.name for path in pictures] == [
        "eigenvalues.png",
        "excess_by_radius.png",
        "map.png",
        "map_momentum.png",
        "map_orthogonalised.png",
    ]
    for path in pictures:
        path.unlink()
    capsys.readouterr()
    plot.main(plot.PlotConfig(), str(run_dir))
    assert capsys.readouterr().out.split() == list(map(str, pictures)) == list(map(str, sorted(run_dir.glob("*.png"))))


def test_without_a_run_directory_it_prints_and_writes_nothing(small_map, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    launcher.main(launcher.MapConfig(), None)
    assert capsys.readouterr().out.count("\n") == 4 and not list(tmp_path.iterdir())
