"""identity_matters.classification: photos in batches that fit; tests/launch/test_classify.py has the command."""

import numpy as np
from image_folders import noise, write

from identity_matters.classification import classify
from identity_matters.classifier import Classifier


def test_photos_are_classified_in_small_batches_and_unnamed_classes_get_numbers(tmp_path):
    paths, sizes = [write(tmp_path / f"{i}.png", noise(4, 4, 3, seed=i)) for i in range(3)], []
    rows = np.log([[1, 2, 1], [1, 1, 2], [6, 1, 1]])

    def logits(images):
        sizes.append(len(images))
        return rows[sum(sizes[:-1]) :][: len(images)]

    model = Classifier(logits, (4, 4, 3), 3, max_batch=2, class_names=("ant", "bee"))
    answers = list(classify(model, paths))
    assert sizes == [2, 1] and [answer.file for answer in answers] == [str(path) for path in paths]
    assert [answer.class_name for answer in answers] == ["bee", "2", "ant"]
    np.testing.assert_allclose([answer.probability for answer in answers], [0.5, 0.5, 0.75])
