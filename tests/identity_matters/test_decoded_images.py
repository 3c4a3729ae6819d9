"""PNG and JPEG files as arrays: the right pixels, once, whatever interrupts; what cannot be decoded is named."""

import os
import pathlib
import struct
import threading
import zlib

import numpy as np
import pytest
from image_folders import noise, write, write_classes
from PIL import Image
from refusals import refused

from identity_matters.data import decoded_images
from identity_matters.data.decoded_images import DecodedImages, cache_folder, decoded, image_shape, read_headers
from identity_matters.data.image_files import split_files
from identity_matters.errors import VaryingSizes


def pixels(path, shape):
    return decoded(str(path), shape)[0]


def test_a_png_gives_its_pixels_and_the_crc_of_its_file(tmp_path):
    for shape in ((5, 7), (5, 7, 3)):
        image = noise(*shape)
        path = write(tmp_path / "x.png", image)
        found, checksum = decoded(str(path), (5, 7, 1 if len(shape) == 2 else 3))
        np.testing.assert_array_equal(found, image.reshape(found.shape))
        assert checksum == zlib.crc32(path.read_bytes()) and found.dtype == np.uint8


def test_modes_become_grey_or_colour(tmp_path):
    grey, alpha = noise(4, 6), noise(4, 6, seed=1)
    Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]).save(tmp_path / "la.png")
    Image.fromarray(np.dstack([grey, grey, grey, alpha])).save(tmp_path / "rgba.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "p.png")
    Image.fromarray(np.where(grey > 127, 255, 0).astype(np.uint8)).convert("1").save(tmp_path / "1.png")
    for name in ("la", "rgba", "p"):
        np.testing.assert_array_equal(pixels(tmp_path / f"{name}.png", (4, 6, 1))[..., 0], grey)
        np.testing.assert_array_equal(pixels(tmp_path / f"{name}.png", (4, 6, 3)), grey[..., None].repeat(3, -1))
    assert set(np.unique(pixels(tmp_path / "1.png", (4, 6, 1)))) == {0, 255}


@pytest.mark.parametrize(
    "options", [{}, {"format": "MPO", "save_all": True, "append_images": [Image.new("L", (8, 8))]}]
)
def test_a_jpeg_is_turned_as_its_camera_was_held(tmp_path, options):
    image = np.zeros((16, 32), np.uint8)
    image[:, :16] = 200
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° to the right
    write(tmp_path / "ant" / "x.jpg", image, exif=exif, quality=95, **options)
    assert read_headers(str(tmp_path), split_files(str(tmp_path))).sizes == [("ant/x.jpg", 32, 16)]
    upright = pixels(tmp_path / "ant" / "x.jpg", (32, 16, 1))[..., 0]
    assert upright[:14].mean() > 195 and upright[18:].mean() < 5


def test_whole_images_are_resized_and_large_jpegs_are_so_in_two_steps(tmp_path):
    ramp = np.broadcast_to(np.linspace(0, 255, 640).astype(np.uint8), (480, 640))
    for name, quality in (("x.png", {}), ("x.jpg", {"quality": 95})):
        small = pixels(write(tmp_path / name, np.ascontiguousarray(ramp), **quality), (16, 16, 1))[..., 0]
        # The mean of each of 16 columns of a ramp, whose ends the triangle of the filter takes inwards.
        expected = 255 * (np.arange(16) + 0.5) / 16
        assert np.abs(small[:, 1:-1] - expected[1:-1]).max() <= 1.5


def test_of_a_jpeg_no_detail_is_lost_that_the_size_has_room_for(tmp_path):
    stripes = np.tile(np.repeat([0, 255] * 8, 4).astype(np.uint8), (64, 1))  # a pixel each at 16 pixels a side
    small = pixels(write(tmp_path / "x.jpg", stripes, quality=95), (16, 16, 1))[..., 0].astype(int)
    # The filter's triangle gives 3/4 of its weight to a stripe.
    assert np.abs(np.diff(small, axis=1)).min() > 100


def png_of_declared_size(path: pathlib.Path, width: int, height: int) -> None:
    """Writes a PNG of a few bytes whose header declares another size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), "not a PNG or JPEG, or is damaged"),
    "text": (lambda path: path.write_text("hello"), "not a PNG or JPEG, or is damaged"),
    "gif": (lambda path: Image.fromarray(noise(8, 8)).save(path, "GIF"), "not a PNG or JPEG, or is damaged"),
    "truncated": (truncated, "remove it, or write it again"),
    "flipped": (flipped, "remove it, or write it again"),
    "2 GB": (lambda path: png_of_declared_size(path, 30_000, 24_000), "declares far more than the 67,108,864 pixels"),
    "declared": (lambda path: png_of_declared_size(path, 9_000, 9_000), "declares 9000x9000 pixels, at most 67"),
    "16 bits": (lambda path: Image.fromarray(np.full((8, 8), 4000, np.uint16)).save(path), "pixels have 16 bits"),
    "large": (lambda path: os.truncate(path, 2**31), "its 2,147,483,648 bytes are more than 268,435,456"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_file_is_named_and_stops_it_with_nothing_kept(tmp_path, damage, recwarn):
    folder = write_classes(tmp_path / "data", shape=(40, 40))
    change, words = DAMAGES[damage]
    change(folder / "bee" / "001.png")
    files = split_files(str(folder))

    def prepare():
        read_headers(str(folder), files)
        DecodedImages(str(folder), {"": files}, (8, 8, 1)).prepare(files, must_be_kept=True)

    message = refused(prepare)
    assert message.startswith(f"cannot read {folder}/bee/001.png: ") and words in message
    assert not [name for _, _, names in os.walk(cache_folder(str(folder))) for name in names if name.startswith("8x8")]
    assert not recwarn.list


def test_a_truncated_jpeg_is_named(tmp_path):
    path = write(tmp_path / "x.jpg", noise(64, 64))
    path.write_bytes(path.read_bytes()[:-400])
    assert "truncated" in refused(decoded, str(path), (64, 64, 1))


def test_several_broken_files_are_counted(tmp_path):
    folder = write_classes(tmp_path / "data")
    for name in ("000.png", "002.png"):
        (folder / "ant" / name).write_bytes(b"")
    files = split_files(str(folder))
    message = refused(DecodedImages(str(folder), {"": files}, (8, 8, 1)).prepare, files, must_be_kept=True)
    assert "1 more near it cannot be read either" in message


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """40 images in several files of the cache."""
    monkeypatch.setattr(decoded_images, "_FILES", 8)
    return write_classes(tmp_path / "data", count=20)


@pytest.fixture
def counted(monkeypatch):
    """The paths that are decoded."""
    paths, decode, lock = [], decoded, threading.Lock()

    def count(path, shape):
        with lock:
            paths.append(path)
        return decode(path, shape)

    monkeypatch.setattr(decoded_images, "decoded", count)
    return paths


def images_of(folder, must_be_kept=True):
    files = split_files(str(folder))
    images = DecodedImages(str(folder), {"": files}, (8, 8, 1))
    images.prepare(files, must_be_kept)
    found = images.read(files)
    for file, image in zip(files, found):
        np.testing.assert_array_equal(image[..., 0], np.asarray(Image.open(folder / file.name)))
    return images, files


def test_images_are_decoded_once_and_changed_or_new_ones_with_those_near_them(folder, counted):
    images_of(folder)
    assert len(counted) == len(set(counted)) == 40
    images_of(folder)
    assert len(counted) == 40
    kept = set(os.listdir(cache_folder(str(folder))))
    write(folder / "ant" / "000.png", noise(8, 8, seed=9))
    write(folder / "bee" / "new.png", noise(8, 8, seed=8))
    images_of(folder)
    assert 40 < len(counted) < 40 + 41
    now = set(os.listdir(cache_folder(str(folder))))
    assert len([name for name in now - kept if name.startswith("8x8x1-")]) <= 2  # those of the two files
    assert len(kept - now) == len(now - kept)  # the old ones are gone


def test_the_images_of_a_split_stay_when_those_of_another_are_decoded(tmp_path, counted):
    """A run may read them out of the cache at the same time."""
    splits = [(name, split_files(str(write_classes(tmp_path / "data" / name).parent), name)) for name in "ab"]
    for split, files in (*splits, splits[0]):
        images = DecodedImages(str(tmp_path / "data"), {split: files}, (8, 8, 1))
        images.prepare(files, must_be_kept=True)
        assert len(images.read(files)) == len(files)
    assert len(counted) == len(set(counted))


def test_interrupted_decoding_goes_on(folder, counted, monkeypatch):
    write_file, written = decoded_images.replacing, []

    def replacing(path):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        return write_file(path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(decoded_images, "replacing", replacing)
        images_of(folder)
    once = len(counted)
    images_of(folder)
    assert 40 < len(counted) < once + 40 and len(set(counted)) == 40


def test_a_damaged_cache_is_decoded_again(folder, counted):
    images_of(folder)
    cache = pathlib.Path(cache_folder(str(folder)))
    first = min(cache.glob("8x8x1-*"))
    first.write_bytes(first.read_bytes()[:-1])
    images_of(folder)
    assert 40 < len(counted) < 80


def test_without_a_cache_images_are_held_in_memory_where_they_may_be(folder, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IDENTITY_MATTERS_CACHE", str(tmp_path / "file"))
    images, files = images_of(folder, must_be_kept=False)
    assert "decoded images are not kept: Not a directory" in capfd.readouterr().err
    assert len(images.digest(files)) == 16
    with pytest.raises(OSError, match="Not a directory"):
        images_of(folder)


def test_a_full_disk_is_noticed_before_anything_is_decoded(folder, counted, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(decoded_images.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="40 decoded images take"):
        images_of(folder)
    assert not counted


def test_the_digest_is_of_names_and_contents_wherever_they_lie(folder, tmp_path):
    images, files = images_of(folder)
    before = images.digest(files)
    moved = folder.rename(tmp_path / "moved")
    images, files = images_of(moved)
    assert images.digest(files) == before
    path = moved / "ant" / "000.png"
    path.write_bytes(path.read_bytes() + b" ")  # the same pixels
    images, files = images_of(moved)
    assert images.digest(files) != before


def test_images_of_several_sizes_ask_for_one(folder):
    write(folder / "ant" / "wide.png", noise(8, 12, 3))
    headers = read_headers(str(folder), split_files(str(folder)))
    assert headers.channels == 3
    with pytest.raises(VaryingSizes, match=r"8x8 \(.*\) and 8x12 \(ant/wide.png\); give --image_size=32"):
        image_shape(str(folder), headers, 0)
    assert image_shape(str(folder), headers, 16) == (16, 16, 3)
    assert read_headers(str(folder), split_files(str(folder))) == headers  # out of the cache
    (copy,) = pathlib.Path(cache_folder(str(folder))).glob("headers-*")
    for damage in ("[]", "{}", "["):
        copy.write_text(damage)
        assert read_headers(str(folder), split_files(str(folder))) == headers
