"""The weights of Table 1, counted again from the shapes of its convolutions."""

import pytest

from theory.relu.table_1 import Count, count_weights


def test_table_1_has_55_convolutions_and_13_54_million_weights():
    shapes = [(3, 3, 3, 16), (3, 3, 16, 64), *[(3, 3, 64, 64)] * 17, (3, 3, 64, 128), *[(3, 3, 128, 128)] * 17]
    shapes += [(3, 3, 128, 256), *[(3, 3, 256, 256)] * 17]
    assert count_weights() == Count(len(shapes), sum(a * b * c * d for a, b, c, d in shapes)) == (55, 13_538_736)


@pytest.mark.parametrize(
    "biases, projections, extra", [(True, False, 16 + 18 * (64 + 128 + 256)), (False, True, 1024 + 8192 + 32768)]
)
def test_biases_and_projections_add_what_they_have(biases, projections, extra):
    count = count_weights(biases, projections)
    assert count.weights == 13_538_736 + extra
    assert count.convolutions == (58 if projections else 55)
