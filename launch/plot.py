"""Draw a run's figures again from its CSV files; nothing is computed. Takes a second.

    python -m launch.plot --run_dir=runs/first

writes runs/first/convergence.png, Figure 1 of Hardt & Ma, from metrics.csv; for a directory of
launch.ablations, ablations.png from results.csv; for one of launch.check_theory or of
launch.shortcut_study, all its figures; for one of launch.hessian_spectrum, spectrum.png.
"""

import dataclasses
import os

from identity_matters.runs.errors import UserError
from launch import launcher


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    """What to draw.

    Attributes:
      title: Title of the figure (empty: none). Figures of launch.check_theory and launch.shortcut_study have their own.
    """

    title: str = ""


def main(config: PlotConfig, run_dir: str) -> None:
    from launch import check_theory, hessian_spectrum, shortcut_study

    paths = next(filter(None, (m.draw_figures(run_dir) for m in (check_theory, hessian_spectrum, shortcut_study))), [])
    if not paths and os.path.exists(os.path.join(run_dir, "claims.md")):
        raise UserError(f"{run_dir} holds checks without the data of figures; run launch.check_theory on all claims")
    for path in paths or [_draw_training(config, run_dir)]:
        print(path)


def _draw_training(config: PlotConfig, run_dir: str) -> str:
    from identity_matters.runs import figures, tables

    results = os.path.join(run_dir, "results.csv")
    if os.path.exists(results):
        path, figure = "ablations.png", figures.ablation_figure(tables.read_metrics(results), config.title)
    else:
        rows = tables.read_metrics(os.path.join(run_dir, "metrics.csv"))
        path, figure = "convergence.png", figures.convergence_figure(rows, config.title)
    path = os.path.join(run_dir, path)
    figures.save_figure(figure, path)
    return path


def cli() -> None:
    launcher.run(main, {"": PlotConfig()}, manual=__doc__)


if __name__ == "__main__":
    cli()
