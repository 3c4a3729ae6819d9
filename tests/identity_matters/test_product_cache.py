"""Products cached in a folder: found again by the request, unless they belong to another matrix."""

import hashlib
import json

import numpy as np
import pytest

from identity_matters.runs.product_cache import ProductCache, digest


@pytest.mark.parametrize(
    "dtype, rounding, limit",
    [("float32", 0, 1e-5), ("float64", 0, 1e-12), ("float64", 1e-6, 1e-5), ("float64", np.inf, 1e-12)],
)
def test_the_first_product_is_computed_again_and_may_differ_by_rounding(tmp_path, dtype, rounding, limit):
    calls, found = [], []
    vectors = np.eye(3, dtype=dtype)

    def products(factor):
        kept = ProductCache(tmp_path / "kept", {"model": ["m"]}, rounding)
        times = lambda vector: calls.append(1) or (vector + 3) * np.asarray(factor, dtype)  # noqa: E731
        product = kept.wrap(times, "h", lambda: found.append(1))
        return [product(vector) for vector in vectors]

    expected = products(1)
    np.testing.assert_array_equal(products(1 + 0.9 * limit), expected)
    assert (len(calls), len(found)) == (4, 2)  # of the second time one, to see whether it is the same
    with pytest.raises(ValueError, match="holds products of other loss, or of another model or type; remove it"):
        products(1 + 1.05 * limit)


def test_products_of_another_problem_are_rejected_and_damaged_ones_computed_again(tmp_path):
    vector, path = np.arange(3.0), tmp_path / "kept"
    ProductCache(path, {"model": ["m"], "examples": [vector]}).wrap(lambda v: 2 * v)(vector)
    for problem, what in (({"model": ["n"]}, "model"), ({"model": ["m"]}, "examples")):
        with pytest.raises(ValueError, match=f"products of other {what}"):
            ProductCache(path, problem)
    (file,) = path.glob("*.npy")
    np.save(file, np.ones(3))
    calls = []
    again = ProductCache(path, {"model": ["m"], "examples": [vector]}).wrap(lambda v: calls.append(1) or 2 * v)
    np.testing.assert_array_equal(again(vector), 2 * vector)
    assert calls == [1]
    texts = b"m\0", b"(3,) float64\n" + vector.tobytes() + b"\0"
    digests = [hashlib.blake2b(text, digest_size=12).hexdigest() for text in texts]
    assert json.loads((path / "problem.json").read_text()) == dict(zip(("model", "examples"), digests))
    asked, result = hashlib.blake2b(b"\0" + texts[1], digest_size=12).hexdigest(), digest([2 * vector])
    assert file.name == f"{asked}-{result}.npy"
    (path / "problem.json").write_text("{")
    with pytest.raises(ValueError, match="is not a folder of Hessian products: remove it"):
        ProductCache(path, {"model": ["m"]})
