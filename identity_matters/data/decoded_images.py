"""PNG and JPEG files as arrays of one shape: decoded once, by Pillow on all cores, and kept in a cache.

The cache lies in the folder that the environment variable IDENTITY_MATTERS_CACHE names, by default in
$XDG_CACHE_HOME/identity_matters or ~/.cache/identity_matters. A folder of images has a folder of its own there, with a
file for about a thousand images, whose name is made of their shape, of their split, and of the names, sizes and times
of their files; it holds

    bytes [n, h·w·c]    the pixels
    bytes [n, 4]        of each image the CRC-32 of its file, by which a run knows its data wherever they lie

Each is written completely or not at all, so that interrupted decoding continues, and a changed file costs a thousand.
"""

import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import json
import math
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm import tqdm

from identity_matters.data.arrays import note
from identity_matters.data.image_files import ImageFile, listing_digest
from identity_matters.errors import UserError, VaryingSizes, first_line
from identity_matters.fields import require
from identity_matters.runs.files import open_file, read_json, remove, replacing, write_text

_FORMATS = ("PNG", "JPEG")
_MAX_PIXELS = 2**26  # of an image: 8192², decoded by each core at once
_MAX_FILE_BYTES = 2**28
_FILES, _BYTES = 1024, 2**26  # of a file of the cache, at most
_FILES_AT_ONCE = 16  # by a thread: one at a time, small ones take longer to hand over than to decode
_GREY = ("1", "L", "LA")
_JPEG = ("JPEG", "MPO")  # as phones write them, with a second image
_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112
_CRC_BYTES = 4


class Headers(NamedTuple):
    """The contents of all headers: (name, height, width) of up to two files of different sizes, and channels."""

    sizes: list[tuple[str, int, int]]
    channels: int


class _Shard(NamedTuple):
    """Files whose decoded images lie in one file of the cache."""

    path: str
    files: Sequence[ImageFile]


class DecodedImages:
    """The images of a folder's files, uint8 [h, w, c] each, decoded when they are first asked for.

    splits has all files, in order, of some folders of class folders, by the names of these ("" for the folder itself).
    shape is (h, w, c), to which images of other sizes are resized and colours converted.

    Raises:
      UserError: a file is damaged or too large; the message names it.
      OSError: the cache cannot be written, and it is needed.
    """

    def __init__(self, folder: str, splits: Mapping[str, Sequence[ImageFile]], shape: tuple[int, int, int]) -> None:
        self._folder, self._shape, self._row_bytes = folder, shape, math.prod(shape)
        self._cache = cache_folder(folder)
        per_shard = max(1, min(_FILES, _BYTES // self._row_bytes))
        self._prefixes = {split: f"{_name(shape)}-{_short_digest(split)}-" for split in splits}
        self._shards = [
            _Shard(os.path.join(self._cache, self._prefixes[split] + listing_digest(part)), part)
            for split, files in splits.items()
            for part in _buckets(files, per_shard)
        ]
        self._rows = {file: (i, k) for i, shard in enumerate(self._shards) for k, file in enumerate(shard.files)}
        self._held: dict[int, bytes] = {}  # of the shards that cannot be written

    def prepare(self, files: Sequence[ImageFile], must_be_kept: bool) -> None:
        """Decodes what the cache lacks of these files; must_be_kept: it is an OSError where it cannot be written."""
        needed = sorted({self._rows[file][0] for file in files})
        if not self._missing(needed):
            return
        try:
            os.makedirs(self._cache, mode=0o700, exist_ok=True)
            with _locked(self._cache, self._folder):
                missing = self._missing(needed)  # another process may have decoded them since
                self._require_room(missing)
                self._decode(missing, is_kept=True)
                self._tidy()
        except OSError as error:
            if must_be_kept:
                raise
            note(f"{self._folder}: decoded images are not kept: {error.strerror or error}: {self._cache}; "
                 "IDENTITY_MATTERS_CACHE names another folder")  # fmt: skip
            self._decode(self._missing(needed), is_kept=False)

    def read(self, files: Sequence[ImageFile]) -> np.ndarray:
        """Returns the images of files that are prepared, uint8 [n, h, w, c]."""
        images = np.empty((len(files), self._row_bytes), np.uint8)
        position = 0
        for index, group in itertools.groupby(files, lambda file: self._rows[file][0]):
            with self._open(index) as read:
                for file in group:
                    images[position] = read(self._rows[file][1] * self._row_bytes, self._row_bytes)
                    position += 1
        return images.reshape(-1, *self._shape)

    def digest(self, files: Sequence[ImageFile]) -> str:
        """Returns a digest of the names and contents of files that are prepared."""
        found = hashlib.blake2b(digest_size=8)
        for index, group in itertools.groupby(files, lambda file: self._rows[file][0]):
            shard = self._shards[index]
            with self._open(index) as read:
                sums = read(len(shard.files) * self._row_bytes, len(shard.files) * _CRC_BYTES).reshape(-1, _CRC_BYTES)
            for file in group:
                found.update(os.fsencode(file.name) + b"\0" + sums[self._rows[file][1]].tobytes())
        return found.hexdigest()

    def _missing(self, indices: Sequence[int]) -> list[int]:
        """Returns those of the shards that the cache lacks, or holds damaged."""

        def is_there(index: int) -> bool:
            shard = self._shards[index]
            with contextlib.suppress(OSError):
                return os.path.getsize(shard.path) == len(shard.files) * (self._row_bytes + _CRC_BYTES)
            return False

        return [index for index in indices if index not in self._held and not is_there(index)]

    def _require_room(self, indices: Sequence[int]) -> None:
        """Raises OSError where the disk lacks the room for these shards."""
        count = sum(len(self._shards[index].files) for index in indices)
        needed, free = count * (self._row_bytes + _CRC_BYTES), shutil.disk_usage(self._cache).free
        if needed > free:
            reason = f"{count:,} decoded images take {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB are free"
            raise OSError(errno.ENOSPC, reason, self._cache)

    def _decode(self, indices: Sequence[int], is_kept: bool) -> None:
        total, start = sum(len(self._shards[index].files) for index in indices), time.perf_counter()
        if not total:
            return
        bar = tqdm(
            total=total, unit=" images", desc=f"decoding {os.path.basename(self._folder)}", disable=None, delay=1
        )
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        with bar, contextlib.ExitStack() as stack:
            stack.callback(pool.shutdown, cancel_futures=True)  # a Ctrl-C need not wait for the images to come
            for index in indices:
                content = self._decoded_shard(self._shards[index].files, pool, bar)
                if is_kept:
                    with replacing(self._shards[index].path) as temporary, open(temporary, "wb") as file:
                        file.write(content)
                else:
                    self._held[index] = content
        rate = total / (time.perf_counter() - start)
        kept = f", and kept in {self._cache}" if is_kept else ""
        note(f"{self._folder}: {total:,} images decoded, {rate:,.0f} a second{kept}")

    def _decoded_shard(self, files: Sequence[ImageFile], pool: concurrent.futures.Executor, bar: tqdm) -> bytes:
        """Returns the content of a file of the cache; raises the UserError of the first file that cannot be read."""
        rows, sums, mistakes = [], [], []

        def attempt(file: ImageFile) -> tuple[bytes, bytes] | UserError:
            try:
                image, checksum = decoded(os.path.join(self._folder, file.name), self._shape)
                return image.tobytes(), checksum.to_bytes(_CRC_BYTES, "little")
            except UserError as error:
                return error

        parts = [files[i : i + _FILES_AT_ONCE] for i in range(0, len(files), _FILES_AT_ONCE)]
        for results in pool.map(lambda part: [attempt(file) for file in part], parts):
            bar.update(len(results))
            mistakes += [result for result in results if isinstance(result, UserError)]
            found = [result for result in results if not isinstance(result, UserError)]
            rows += [row for row, _ in found]
            sums += [checksum for _, checksum in found]
        if mistakes:
            others = f"; {len(mistakes) - 1} more near it cannot be read either" if len(mistakes) > 1 else ""
            raise UserError(f"{mistakes[0]}{others}")
        return b"".join(rows + sums)

    @contextlib.contextmanager
    def _open(self, index: int) -> Iterator:
        """Yields read(start, count) of a shard: uint8 [count]."""
        if index in self._held:
            yield lambda start, count: np.frombuffer(self._held[index], np.uint8, count, start)
            return
        path = self._shards[index].path
        try:
            with open_file(path) as file:
                yield lambda start, count: np.frombuffer(os.pread(file.fileno(), count, start), np.uint8, count)
        except (OSError, ValueError) as error:
            what = f"cannot read the decoded images of {self._folder}, {path}: {first_line(error)}"
            raise UserError(f"{what}; the same command decodes them again") from error

    def _tidy(self) -> None:
        """Removes what a killed process left half-written, and the images of this shape of files that have changed.

        Those of other splits stay: another run may read them now.
        """
        prefixes, known = tuple(self._prefixes.values()), {os.path.basename(shard.path) for shard in self._shards}
        for name in os.listdir(self._cache):
            is_stale = name.startswith(prefixes) and name not in known
            if is_stale or name.startswith(".tmp"):
                remove(os.path.join(self._cache, name))


def _name(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


def _short_digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _buckets(files: Sequence[ImageFile], size: int) -> list[list[ImageFile]]:
    """Returns files in order in parts of about `size`, to one of which alone a further file is added."""
    bits = max(0, math.ceil(math.log2(max(1, len(files)) / size)))
    return [list(part) for _, part in itertools.groupby(files, lambda file: file.place >> (64 - bits))]


def cache_folder(folder: str) -> str:
    """Returns the folder for the decoded images of a folder of images."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = os.environ.get("IDENTITY_MATTERS_CACHE") or os.path.join(home, "identity_matters")
    return os.path.join(place, "images", _short_digest(os.path.realpath(folder)))


@contextlib.contextmanager
def _locked(cache: str, folder: str) -> Iterator[None]:
    """Opens a context in which no other process writes to a folder of the cache, where its disk has locks."""
    with open(os.path.join(cache, ".lock"), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another process is decoding the images of {folder}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # as some network file systems: at worst both decode the same
            pass
        yield


def read_headers(folder: str, files: Sequence[ImageFile]) -> Headers:
    """Returns what the headers of files say, of which the cache keeps a copy; raises UserError as `DecodedImages`."""
    copy = os.path.join(cache_folder(folder), f"headers-{listing_digest(files)}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):  # not there, or damaged
        stored = read_json(copy)
        return Headers([(str(name), int(height), int(width)) for name, height, width in stored[0]], int(stored[1]))
    sizes: dict[tuple[int, int], str] = {}
    channels = 1
    with warnings.catch_warnings():  # Pillow warns of what is refused below
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for file in tqdm(files, unit=" images", desc=f"headers of {os.path.basename(folder)}", disable=None, delay=1):
            path = os.path.join(folder, file.name)
            with _reading(path), open_file(path) as opened:
                image = _open_image(opened, file.num_bytes)
                sizes.setdefault(_upright_size(image), file.name)
                channels = channels if image.mode in _GREY else 3
    found = Headers([(name, *size) for size, name in sizes.items()][:2], channels)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
        write_text(copy, json.dumps(found))
    return found


def image_shape(folder: str, headers: Headers, image_size: int) -> tuple[int, int, int]:
    """Returns the shape that a folder's images get; raises VaryingSizes where none is given and they have several."""
    if image_size:
        return (image_size, image_size, headers.channels)
    if len(headers.sizes) > 1:
        (name, height, width), (other, other_height, other_width) = headers.sizes
        raise VaryingSizes(
            f"the images of {folder} vary in size, {height}x{width} ({name}) and {other_height}x{other_width} "
            f"({other}); give --image_size=32 (image_size=32), say"
        )
    return (*headers.sizes[0][1:], headers.channels)


def decoded(path: str, shape: tuple[int, int, int]) -> tuple[np.ndarray, int]:
    """Returns the image of a PNG or JPEG file as uint8 [h, w, c] of a shape, whose c is 1 or 3, and the file's CRC-32.

    A JPEG is turned as its EXIF data say, transparency is dropped, and another size resized as a whole, bilinear with
    antialiasing.

    Raises:
      UserError: it is damaged, too large, or not a PNG or JPEG of 8 bits.
    """
    height, width, channels = shape
    with _reading(path), open_file(path) as file:
        content = file.read(_MAX_FILE_BYTES + 1)
        image = _open_image(io.BytesIO(content), len(content))
        mode = "L" if channels == 1 else "RGB"
        # Of a much larger JPEG no more is decoded than twice what is needed: 4, 16 or 64 times as fast.
        image.draft(mode, (2 * max(height, width),) * 2)
        turned = ImageOps.exif_transpose(image) if image.format in _JPEG else image
        turned = turned.convert(mode)
        if turned.size != (width, height):
            turned = turned.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(turned).reshape(shape), zlib.crc32(content)


def _open_image(file: BinaryIO, size: int) -> Image.Image:
    """Returns an image, of a file of `size` bytes, whose header alone is read; UserError where more should not be."""
    require(size <= _MAX_FILE_BYTES, f"its {size:,} bytes are more than {_MAX_FILE_BYTES:,}")
    try:
        image = Image.open(file, formats=_FORMATS)
        pixels = image.width * image.height
    except Image.DecompressionBombError as error:
        raise UserError(f"it declares far more than the {_MAX_PIXELS:,} pixels that are decoded") from error
    declared = f"it declares {image.height}x{image.width} pixels, at most {_MAX_PIXELS:,} in all are decoded"
    require(pixels <= _MAX_PIXELS, declared)
    require(not image.mode.startswith("I"), "its pixels have 16 bits; only those of 8 are read")
    return image


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Returns height and width after the rotation that its EXIF data ask for."""
    # Of a PNG, Pillow would decode all to find them.
    is_turned = image.format in _JPEG and image.getexif().get(_ORIENTATION) in _TURNED
    return (image.width, image.height) if is_turned else (image.height, image.width)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Opens a context that raises a UserError, naming the file, for any error that Pillow raises on a damaged one."""
    try:
        yield
    except MemoryError:
        raise
    except UnidentifiedImageError as error:
        raise UserError(
            f"cannot read {path}: it is not a PNG or JPEG, or is damaged; remove it, or write it again"
        ) from error
    except Exception as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)[:200]
        raise UserError(f"cannot read {path}: {reason}; remove it, or write it again") from error
