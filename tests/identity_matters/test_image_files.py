"""The files of a folder of images: their classes, splits and order, and what is refused in one line."""

import os
import shutil

import pytest
from image_folders import noise, write, write_classes
from refusals import refused

from identity_matters.data import image_files
from identity_matters.data.image_files import files_to_evaluate_on, read_splits, split_files

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
    before = read_splits(str(flat), 0.2)
    assert len(before.train) + len(before.test) == 80 and 4 <= len(before.test) <= 28  # 4 standard deviations
    assert not names(before.train) & names(before.test) and before.class_names == ("ant", "bee")
    write_classes(flat, ("ant", "bee", "cat"), count=70, shape=(2, 2))
    after = read_splits(str(flat), 0.2)
    assert names(before.train) < names(after.train) and names(before.test) < names(after.test)
    order = [file for file in after.train if file.name in names(before.train)]
    assert [file.name for file in order] == [file.name for file in before.train]
    larger = read_splits(str(flat), 0.4)
    assert names(after.test) < names(larger.test)


def test_a_file_that_is_moved_to_another_class_stays_in_its_split(flat):
    tested = read_splits(str(flat), 0.3).test[0]
    shutil.move(flat / tested.name, flat / "bee" / "moved.png")
    shutil.move(flat / "bee" / "moved.png", flat / "bee" / os.path.basename(tested.name))
    assert os.path.join("bee", os.path.basename(tested.name)) in names(read_splits(str(flat), 0.3).test)


def test_the_share_is_what_is_asked_for():
    files = [image_files.ImageFile(place, "", "", 0, 0) for place in range(0, 2**64, 2**54)]
    assert [sum(image_files.is_tested(file, share) for file in files) for share in (0.25, 0.5)] == [256, 512]


def test_the_first_files_are_a_sample_of_all_classes(split):
    train = read_splits(str(split)).train
    assert {file.class_name for file in train[:2]} == {"ant", "bee"}  # equal names take turns


def test_folders_in_class_folders_are_read_and_hidden_and_other_files_are_not(split, capfd):
    write(split / "train" / "ant" / "more" / "x.PNG", noise(2, 2))
    for name in ("readme.txt", "clip.gif", ".hidden.png"):
        (split / "train" / "ant" / name).write_bytes(b"")
    train = read_splits(str(split)).train
    assert "train/ant/more/x.PNG" in names(train) and len(train) == 7
    assert "train: 2 files are left out, as their names end in none of .png, .jpg, .jpeg: clip.gif, readme.txt" in (
        capfd.readouterr().err
    )


def test_splits_are_chosen_by_name(split):
    (split / "test").rename(split / "dev")
    message = refused(read_splits, str(split))
    assert "has no folder test/, only dev, train" in message and "--test_split" in message
    assert names(read_splits(str(split), 0.0, "train", "dev").test) == names(
        files_to_evaluate_on(str(split), 0, "dev")[0]
    )
    assert "has no folder nix/" in refused(read_splits, str(split), 0.0, "nix", "dev")
    assert "has no folder nix/" in refused(files_to_evaluate_on, str(split), 0.0, "nix")


def test_what_is_evaluated_on_is_test_or_a_share_or_all(split, flat):
    assert len(files_to_evaluate_on(str(split))[0]) == 6 and len(files_to_evaluate_on(str(split), 0.5)[0]) == 6
    assert names(files_to_evaluate_on(str(flat), 0.2)[0]) == names(read_splits(str(flat), 0.2).test)
    assert len(files_to_evaluate_on(str(flat))[0]) == 80
    shutil.rmtree(flat / "bee")
    assert len(files_to_evaluate_on(str(flat))[0]) == 40  # one class can be evaluated on


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "damage, words",
    [
        (
            lambda path: [remove(file) for file in (path / "train" / "bee").iterdir()],
            "train/bee holds no PNG or JPEG file",
        ),
        (
            lambda path: [remove(path / name / "bee") for name in ("train", "test")],
            "only one class, ant; at least two are needed",
        ),
        (
            lambda path: [remove(path / "train"), (path / "test").rename(path / "data")],
            "only one class, data; at least",
        ),
        (lambda path: remove(path / "test" / "bee"), "train/ alone has bee, test/ alone has none"),
        (lambda path: write_classes(path / "test", ["wasp"]), "train/ alone has none, test/ alone has wasp"),
        (lambda path: (path / "test" / "ant" / "l.png").symlink_to("/etc/hostname"), "l.png is a link out of"),
        (lambda path: (path / "test" / "ant" / "l.png").symlink_to("nothing"), "cannot read"),
        (lambda path: (path / "test" / "ant" / "more").symlink_to(".."), "more is a link to a folder"),
        (lambda path: (path / "test" / "cat").symlink_to(path / "test" / "ant"), "cat is a link to a folder"),
        (lambda path: os.mkfifo(path / "test" / "ant" / "p.png"), "p.png is not a regular file"),
        (lambda path: remove(path), "cannot read the folder of images"),
        (lambda path: [remove(path / name) for name in ("train", "test")], "holds no folders"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(split, damage, words):
    damage(split)
    message = refused(read_splits, str(split))
    assert words in message and str(split) in message


def test_a_link_to_a_file_inside_is_followed(split):
    (split / "test" / "ant" / "again.png").symlink_to("000.png")
    assert len(read_splits(str(split)).test) == 7


def test_a_folder_without_splits_asks_for_a_share_and_one_with_them_for_none(flat, split):
    message = refused(read_splits, str(flat))
    assert "holds the classes ant, bee, and no train/ and test/" in message and ADVICE in message
    assert "leave out --test_share (test_share=0.2)" in refused(read_splits, str(split), 0.2)
    write(flat.parent / "loose" / "a.png", noise(2, 2))
    assert "holds images, but no folders" in refused(read_splits, str(flat.parent / "loose"), 0.2)


def test_a_share_that_leaves_nothing_is_refused_or_said(flat, capfd):
    write(flat / "cat" / "000.png", noise(2, 2))
    place = next(file.place for file in split_files(str(flat)) if file.class_name == "cat") / 2**64
    assert "nothing to train on in the classes cat" in refused(read_splits, str(flat), place * (1 + 1e-9))
    assert "nothing to test on; make it larger" in refused(read_splits, str(flat), 1e-9)
    capfd.readouterr()
    read_splits(str(flat), place * (1 - 1e-9))
    assert "nothing to test on in the classes cat" in capfd.readouterr().err
