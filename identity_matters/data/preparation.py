"""Finds the prepared files of a TFDS set, or has TFDS download and prepare them."""

import contextlib
import difflib
import logging
import os
import shlex
from collections.abc import Iterator
from unittest import mock

import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from identity_matters.data.arrays import MNIST_SAMPLE
from identity_matters.data.user_arrays import require_stored
from identity_matters.errors import Preempted, UserError, first_line, truncated_repr


def prepared_builder(name: str, data_dir: str = "", download: bool = False) -> tfds.core.DatasetBuilder:
    """Returns the builder of a data set whose files are there, or are downloaded on request; else raises UserError."""
    require_stored(name)
    try:
        if tfds.core.naming.parse_builder_name_kwargs(name)[0].namespace:
            raise ValueError("data sets of other parties bring code of theirs")
        with _features_of_tfds_alone():
            builder = tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.DatasetNotFoundError:
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False) + [MNIST_SAMPLE], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; {MNIST_SAMPLE} needs no files"
        raise UserError(f"there is no data set {name!r}{hint}") from None
    except Exception as error:  # a wrong version, config or syntax of the name, damaged files: TFDS raises anything
        raise UserError(f"TFDS cannot make {name!r}: {first_line(error)}") from error
    if not builder.is_prepared():
        if not download:
            place = f" --data_dir={shlex.quote(data_dir)}" if data_dir else ""
            raise UserError(
                f"{name} is not prepared under {data_dir or os.path.dirname(builder.data_dir)}; --data_dir "
                f"(data_dir=…) names another place; --download of launch.train (download=True) has TFDS fetch it, or "
                f"python -m launch.export_npz --dataset={name}{place} --download --npz={builder.name}.npz"
            )
        _download(name, builder)
    return builder


def _download(name: str, builder: tfds.core.DatasetBuilder) -> None:
    """Has TFDS download and prepare a set, or raises UserError after a few seconds where it cannot be reached."""
    # TFDS would try ten times in the course of 200 seconds, with a warning each time.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    retries, downloader.MAX_RETRIES = downloader.MAX_RETRIES, 3
    try:
        builder.download_and_prepare()
    except Preempted:
        raise
    except requests.exceptions.ConnectionError as error:
        url = getattr(error.request, "url", None) or "the server"
        raise UserError(
            f"TFDS cannot download {name}: {url} cannot be reached from here; without a network, copy a prepared "
            f"{name} to --data_dir (data_dir=…)"
        ) from error
    except Exception as error:  # no space, or files to be fetched by hand: TFDS raises anything
        raise UserError(f"TFDS cannot download {name}: {' '.join(str(error).split())}") from error
    finally:
        downloader.MAX_RETRIES = retries


@contextlib.contextmanager
def _features_of_tfds_alone() -> Iterator[None]:
    """Opens a context in which TFDS takes no class but its own: a features.json can name any module to be imported."""
    connector = tfds.features.FeatureConnector
    find = connector.cls_from_name

    def find_of_tfds(name: str) -> type:
        if not name.startswith("tensorflow_datasets."):
            raise UserError(f"its features.json names the class {truncated_repr(name)}, which is not TFDS's own")
        return find(name)

    with mock.patch.object(connector, "cls_from_name", find_of_tfds):
        yield


def supervised_keys(builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    """Returns the names of an example's image and label, or raises UserError where the set has other ones."""
    keys, features = builder.info.supervised_keys, builder.info.features
    types = (tfds.features.Image, tfds.features.ClassLabel)
    if keys and len(keys) == 2 and all(isinstance(features[key], kind) for key, kind in zip(keys, types)):
        return keys
    raise UserError(f"{builder.name} is not an image-classification set")
