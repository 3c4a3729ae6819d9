"""TFDS sets by name: found under data_dir, or downloaded on request; where not, a line says what is there instead."""

import difflib
import logging
import os
import re
import shlex

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from identity_matters.data.arrays import require_stored
from identity_matters.data.source import MNIST_SAMPLE
from identity_matters.data.tfds_files import check_files, features_of_tfds_alone
from identity_matters.errors import Preempted, UserError, first_line
from identity_matters.fields import require
from identity_matters.runs.config_json import require_mounted

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MAX_DEPTH = 3  # of a data_dir that is too deep: a set's name, its config, its version


def prepared_builder(name: str, data_dir: str = "", download: bool = False) -> tfds.core.DatasetBuilder:
    """Returns the builder of a data set whose files are there, or are downloaded on request; else raises UserError."""
    require_stored(name)
    parsed, options = None, {}
    try:
        parsed, options = tfds.core.naming.parse_builder_name_kwargs(name)
        require(not parsed.namespace, "third-party data sets bring their own code")
        if data_dir:
            require_mounted(data_dir)
            check_files(os.path.join(os.path.expanduser(data_dir), parsed.name))
        with features_of_tfds_alone():
            builder = tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.DatasetNotFoundError:
        require(not (elsewhere := found_instead(parsed.name, options.get("version"), data_dir)), elsewhere)
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False) + [MNIST_SAMPLE], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; {MNIST_SAMPLE} needs no files"
        raise UserError(f"there is no data set {name!r}{hint}") from None
    except Exception as error:  # a wrong version, config or syntax of the name, damaged files: TFDS raises anything
        elsewhere = found_instead(parsed.name, options.get("version"), data_dir) if parsed else ""
        raise UserError(elsewhere or f"TFDS cannot make {name!r}: {first_line(error)[:300]}") from error
    if not builder.is_prepared():
        if not download:
            require(not (elsewhere := found_instead(builder.name, str(builder.version), data_dir)), elsewhere)
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
    except Exception as error:  # no network, no space, or files to be fetched by hand: TFDS raises anything
        url = getattr(getattr(error, "request", None), "url", None)  # of an error of the library requests
        if url:
            raise UserError(
                f"TFDS cannot download {name}: {url} cannot be reached from here; without a network, copy a prepared "
                f"{name} to --data_dir (data_dir=…)"
            ) from error
        raise UserError(f"TFDS cannot download {name}: {' '.join(str(error).split())}") from error
    finally:
        downloader.MAX_RETRIES = retries


def found_instead(name: str, version: str | None, data_dir: str) -> str:
    """Returns a line that says where a set lies, or in what versions, that is not there as asked for; or ""."""
    if not data_dir:
        return ""
    place = os.path.abspath(os.path.expanduser(data_dir))
    if version and (present := _versions(os.path.join(place, name))) and version not in present:
        others = " or ".join(f"{name}:{other}" for other in present)
        return f"{data_dir} holds {name} as version {', '.join(present)}, not {version}; name the dataset {others}"
    for _ in range(_MAX_DEPTH):
        place = os.path.dirname(place)
        if _versions(os.path.join(place, name)):
            return f"data_dir {data_dir} is too deep: it must be the folder that holds {name}/, {place}"
    return ""


def _versions(folder: str) -> list[str]:
    """Returns the versions of a prepared set, or of any of its configs, that lie in its folder."""
    present = set()
    for path, folders, names in os.walk(folder):
        is_version = _VERSION.fullmatch(os.path.basename(path)) is not None
        present |= {os.path.basename(path)} if is_version and "dataset_info.json" in names else set()
        if is_version or os.path.relpath(path, folder).count(os.sep) >= 1:
            folders.clear()
    return sorted(present)


def image_and_label(builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    """Returns the names of an example's image and label: the supervised keys, or the only image and class label.

    Raises UserError where the set has other ones, or several.
    """
    keys, features = builder.info.supervised_keys, builder.info.features
    types = (tfds.features.Image, tfds.features.ClassLabel)
    connectors = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    if keys:
        fits = len(keys) == 2 and all(isinstance(key, str) for key in keys)
        if fits and all(isinstance(connectors.get(key), kind) for key, kind in zip(keys, types)):
            return keys
        raise UserError(f"{builder.name} is not an image-classification set")
    images, labels = ([key for key, feature in connectors.items() if isinstance(feature, kind)] for kind in types)
    if len(images) == len(labels) == 1:
        return images[0], labels[0]
    raise UserError(
        f"{builder.name} is not an image-classification set: it has no supervised_keys, and {len(images)} images and "
        f"{len(labels)} class labels in place of one of each"
    )
