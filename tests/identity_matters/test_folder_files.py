"""The files of a folder of images: their classes, splits, order and pixels, and the errors for invalid ones."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import struct
import types
import zlib

import numpy as np
import pytest
from image_folders import noise, write, write_classes
from loaded import load
from PIL import Image, ImageOps
from refusals import refused

from identity_matters import training
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.data import folder as folder_module
from identity_matters.data import photos
from identity_matters.data.folder import files_to_evaluate_on, list_files, read_splits
from identity_matters.data.source import open_source
from identity_matters.errors import VaryingSizes


def splits(folder, **fields):
    """The files to train and to test on of a folder."""
    train, test = read_splits(DataConfig(images=str(folder), **fields))
    return types.SimpleNamespace(train=train, test=test)


def evaluated(folder, **fields):
    return files_to_evaluate_on(DataConfig(images=str(folder), **fields))


def opened(folder, **fields):
    return open_source(DataConfig(images=str(folder), **fields))


ADVICE = "--test_share=0.2 (test_share=0.2) tests on a fifth of them"


@pytest.fixture
def flat(tmp_path):
    return write_classes(tmp_path / "flat", count=40, shape=(2, 2))


@pytest.fixture
def split(tmp_path):
    for name in ("train", "test"):
        write_classes(tmp_path / "split" / name)
    return tmp_path / "split"


def names(files):
    return {file.name for file in files}


def test_a_share_is_chosen_by_name_and_further_images_move_no_others(flat):
    before = splits(flat, test_share=0.2)
    assert len(before.train) + len(before.test) == 80 and 4 <= len(before.test) <= 28  # 4 standard deviations
    assert not names(before.train) & names(before.test)
    write_classes(flat, ("ant", "bee", "cat"), count=70, shape=(2, 2))
    after = splits(flat, test_share=0.2)
    assert names(before.train) < names(after.train) and names(before.test) < names(after.test)
    order = [file for file in after.train if file.name in names(before.train)]
    assert [file.name for file in order] == [file.name for file in before.train]
    larger = splits(flat, test_share=0.4)
    assert names(after.test) < names(larger.test)


def test_a_file_that_is_moved_to_another_class_stays_in_its_split(flat):
    tested = splits(flat, test_share=0.3).test[0]
    shutil.move(flat / tested.name, flat / "bee" / "moved.png")
    shutil.move(flat / "bee" / "moved.png", flat / "bee" / os.path.basename(tested.name))
    assert os.path.join("bee", os.path.basename(tested.name)) in names(splits(flat, test_share=0.3).test)


def test_the_share_is_what_is_asked_for(flat):
    files = [folder_module.ImageFile(place, "", "") for place in range(0, 2**64, 2**54)]
    assert [sum(folder_module.is_tested(file, share) for file in files) for share in (0.25, 0.5)] == [256, 512]
    places = {file.name: file.place for file in list_files(str(flat))}  # as earlier versions had them
    assert places["ant/007.png"] == int(hashlib.blake2b(b"007.png", digest_size=8).hexdigest(), 16)


def test_the_first_files_are_a_sample_of_all_classes(split):
    train = splits(split).train
    assert {file.class_name for file in train[:2]} == {"ant", "bee"}  # equal names take turns


def test_folders_in_class_folders_are_read_and_hidden_and_other_files_are_not(split, capfd):
    write(split / "train" / "ant" / "more" / "x.PNG", noise(2, 2))
    for name in ("readme.txt", "clip.gif", ".hidden.png"):
        (split / "train" / "ant" / name).write_bytes(b"")
    train = splits(split).train
    assert "train/ant/more/x.PNG" in names(train) and len(train) == 7
    assert "train: 2 files are not read, as their names end in none of .png, .jpg, .jpeg: clip.gif, readme.txt" in (
        capfd.readouterr().err
    )


def test_splits_are_chosen_by_name(split):
    (split / "test").rename(split / "dev")
    message = refused(splits, split)
    assert "has no folder test/, only dev, train; --train_split and --test_split" in message
    named = {"train_split": "train", "test_split": "dev"}
    assert names(splits(split, **named).test) == names(evaluated(split, test_split="dev"))
    assert "has no folder nix/" in refused(splits, split, **named | {"train_split": "nix"})
    assert "has no folder nix/" in refused(splits, split, train_split="nix")
    assert "has no folder nix/" in refused(evaluated, split, test_split="nix")


@pytest.mark.parametrize("train, test", [("Train", "Test"), ("TRAIN", "test")])
def test_splits_are_found_in_any_case(split, train, test):
    expected = len(splits(split).train), len(evaluated(split))
    (split / "train").rename(split / train)
    (split / "test").rename(split / test)
    assert (len(splits(split).train), len(evaluated(split))) == expected
    assert splits(split).train[0].name.startswith(train + "/")


@pytest.mark.parametrize("path", ["flat/run", "flat/ant/deep/run", "flat", "link/run"])
def test_a_run_directory_inside_the_folder_of_images_is_rejected(flat, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("flat")
    config = DataConfig(images="flat", test_share=0.2)
    assert "is in the folder of images flat" in refused(training.train, TrainConfig(data=config), path)
    assert not (tmp_path / path / "config.json").exists()
    folder_module.check_run_dir_outside_images(config, "flat_run")


def test_what_is_evaluated_on_is_test_or_a_share_or_all(split, flat):
    assert len(evaluated(split)) == 6 and len(evaluated(split, test_share=0.5)) == 6
    assert names(evaluated(flat, test_share=0.2)) == names(splits(flat, test_share=0.2).test)
    assert len(evaluated(flat)) == 80
    shutil.rmtree(flat / "bee")
    assert len(evaluated(flat)) == 40  # one class can be evaluated on


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda path: [remove(file) for file in (path / "train" / "bee").iterdir()], "train/bee holds no PNG or JPEG"),
        (lambda path: [remove(path / name / "bee") for name in ("train", "test")], "only one class, ant; give each"),
        (
            lambda path: [remove(path / "train"), (path / "test").rename(path / "data")],
            "holds the classes data, and no",
        ),
        (lambda path: remove(path / "test" / "bee"), "only the training split has bee, only the test split none"),
        (lambda path: write_classes(path / "test", ["wasp"]), "only the test split wasp"),
        (lambda path: remove(path), "cannot read the folder of images"),
        (lambda path: [remove(path / name) for name in ("train", "test")], "holds no folders"),
    ],
)
def test_a_folder_that_cannot_be_used_raises_a_short_error(split, damage, words):
    damage(split)
    message = refused(splits, split)
    assert words in message and str(split) in message


def test_a_folder_without_splits_asks_for_a_share_and_one_with_them_for_none(flat, split):
    message = refused(splits, flat)
    assert "holds the classes ant, bee, and no train/ and test/" in message and ADVICE in message
    assert "leave out --test_share (test_share)" in refused(splits, split, test_share=0.2)


def test_a_share_that_leaves_nothing_is_rejected(flat):
    write(flat / "cat" / "000.png", noise(2, 2))
    place = next(file.place for file in list_files(str(flat)) if file.class_name == "cat") / 2**64
    message = refused(splits, flat, test_share=place * (1 + 1e-9))
    assert "nothing to train on in the classes cat of" in message
    assert "nothing to test on of" in refused(splits, flat, test_share=1e-9)


def pixels(path, shape):
    return folder_module.decode(str(path), shape)


def test_a_png_gives_its_pixels(tmp_path):
    for shape in ((5, 7), (5, 7, 3)):
        image = noise(*shape)
        path = write(tmp_path / "x.png", image)
        found = pixels(path, (5, 7, 1 if len(shape) == 2 else 3))
        np.testing.assert_array_equal(found, image.reshape(found.shape))
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(photos.read([str(path)], found.shape)[0], found)


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


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_of_a_jpeg_is_that_of_the_turned_image(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = write(tmp_path / "x.jpg", noise(16, 32), exif=exif)
    header = folder_module.read_header(str(path))
    width, height = ImageOps.exif_transpose(Image.open(path)).size
    assert header[:3] == (height, width, True) and (height, width) == ((16, 32), (32, 16))[orientation > 4]


@pytest.mark.parametrize(
    "options", [{}, {"format": "MPO", "save_all": True, "append_images": [Image.new("L", (8, 8))]}]
)
def test_a_jpeg_is_turned_as_its_camera_was_held(tmp_path, options):
    image = np.zeros((16, 32), np.uint8)
    image[:, :16] = 200
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° to the right
    for name in ("train/ant", "train/bee", "test/ant", "test/bee"):
        write(tmp_path / name / "x.jpg", image, exif=exif, quality=95, **options)
    assert opened(tmp_path).image_shape == (32, 16, 1)
    upright = pixels(tmp_path / "train" / "ant" / "x.jpg", (32, 16, 1))[..., 0]
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
    for height in (16, 4):
        small = pixels(write(tmp_path / "x.jpg", stripes, quality=95), (height, 16, 1))[..., 0].astype(int)
        # The filter's triangle gives 3/4 of its weight to a stripe.
        assert np.abs(np.diff(small, axis=1)).min() > 100
    with Image.open(path := write(tmp_path / "noise.jpg", noise(64, 64))) as image:
        image.draft("L", (32, 32))  # half the size, which takes less time
        np.testing.assert_array_equal(pixels(path, (16, 16, 1))[..., 0], image.resize((16, 16), Image.BILINEAR))


def png_of_declared_size(path: pathlib.Path, width: int, height: int, depth: int = 8, kind: int = 2) -> None:
    """Writes a PNG of 1,000 bytes, whose header may declare another size than these have."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def truncated(path, bytes_lost=40):
    path.write_bytes(path.read_bytes()[:-bytes_lost])


def truncated_jpeg(path):
    Image.fromarray(noise(64, 64)).save(path, "JPEG")
    truncated(path, 400)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), "not a PNG or JPEG, or is damaged"),
    "text": (lambda path: path.write_text("hello"), "not a PNG or JPEG, or is damaged"),
    "gif": (lambda path: Image.fromarray(noise(8, 8)).save(path, "GIF"), "not a PNG or JPEG, or is damaged"),
    "truncated": (truncated, "remove it, or write it again"),
    "a truncated JPEG": (truncated_jpeg, "truncated"),
    "flipped": (flipped, "remove it, or write it again"),
    "2 GB": (lambda path: png_of_declared_size(path, 30_000, 24_000), "declares far more than the 67,108,864 pixels"),
    "declared": (lambda path: png_of_declared_size(path, 9_000, 9_000), "9000x9000 pixels, more than the 67,108,864"),
    "16 bits": (lambda path: Image.fromarray(np.full((8, 8), 4000, np.uint16)).save(path), "pixels have 16 bits"),
    **{f"16 bits, {name}": (lambda path, kind=kind: png_of_declared_size(path, 4, 4, 16, kind), "pixels have 16 bits")
       for name, kind in (("grey", 0), ("colour", 2), ("grey and transparent", 4), ("colour and transparent", 6))},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_file_is_named(split, damage, recwarn):
    change, words = DAMAGES[damage]
    write(path := split / "train" / "bee" / "001.png", noise(40, 40))
    change(path)
    config = DataConfig(images=str(split), image_size=8)
    message = refused(load, config)
    assert message.startswith(f"cannot read {path}: ") and words in message
    assert not recwarn.list


def test_the_digest_is_of_names_and_contents_wherever_they_lie(split, tmp_path):
    before, files = opened(split).digest, splits(split)
    parts = ((os.fsencode(file.name), (split / file.name).read_bytes()) for file in files.train + files.test)
    text = b"".join(name + b"\0" + struct.pack("<I", zlib.crc32(content)) for name, content in parts)
    assert before == hashlib.blake2b(text, digest_size=8).hexdigest()
    moved = split.rename(tmp_path / "moved")
    assert opened(moved).digest == before and opened(moved).name == "moved"
    path = moved / "train" / "ant" / "000.png"
    path.write_bytes(path.read_bytes() + b" ")  # the same pixels
    assert opened(moved).digest != before


def test_the_progress_bar_counts_the_files(split, monkeypatch):
    shown = []
    bar = lambda total, **_: types.SimpleNamespace(update=lambda count: shown.append((total, count)))  # noqa: E731
    monkeypatch.setattr(folder_module, "tqdm", lambda **options: contextlib.nullcontext(bar(**options)))
    opened(split)
    assert shown == [(12, 12)]


def test_images_of_several_sizes_ask_for_one(split):
    first = splits(split).train[0].name
    write(split / first, noise(10, 12, 3))
    with pytest.raises(VaryingSizes, match=rf"10x12 \({first}\) and 8x8 \(.*\); give --image_size=32"):
        opened(split)
    assert opened(split, image_size=16).image_shape == (16, 16, 3)
