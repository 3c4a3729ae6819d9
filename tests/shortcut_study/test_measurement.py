"""curvature.measurement on an operator in NumPy: the time of products, and the count of the progress bar."""

from types import SimpleNamespace

import numpy as np

from shortcut_study.curvature import measurement


class Doubling:
    """An operator whose product with v is 2v, in two batches."""

    shape, num_batches, on_batch, rounding = (3, 3), 2, None, 0.0

    def problem(self):
        return {}

    def __matmul__(self, vector):
        return 2 * vector


def test_basis_larger_than_half_of_memory_is_in_a_temporary_file_and_changes_no_bit(tmp_path, capsys, monkeypatch):
    clock, noted = iter([0, 9.0, 10, 10.7, 11, 11]), []  # seconds before and after each
    monkeypatch.setattr(measurement, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with measurement.MeasurementContext(Doubling(), None, True) as context:
        context.plan("a", 10, is_final=True)
        context.plan("b", 1000)
        assert context._bar.total == 2020 and "at most" in context._bar.desc
        product = context.product()
        for _ in range(3):
            product(np.ones(3))
            noted.append("note: a product takes 0.7 s" in capsys.readouterr().err)
        context.plan("b", 5, is_final=True)
        assert noted == [False, True, False] and context._bar.total == 30 and "at most" not in context._bar.desc
    for _ in range(2):
        with measurement.MeasurementContext(Doubling(), tmp_path / "kept", True) as context:
            row = context.kept(lambda v: 2 * v, "row", 5)
            assert [row(np.full(3, k)).tolist() for k in (0.5, 1.5)] == [[1] * 3, [3] * 3]
    assert context._bar.n == 10  # the first is computed again, to compare
