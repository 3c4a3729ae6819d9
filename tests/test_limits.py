"""Each limit that a user meets: the last value that is taken, and that the next one is refused, shown or cut."""

import contextlib
import errno
import io
import json
import os
import pathlib
import platform
import stat
import struct
import subprocess
import sys
import types
import zipfile
import zlib

import keras
import numpy as np
import pytest
from study_rows import TWO, row

import launch
from identity_matters import classifier, errors, evaluation, safe_loading, starting_weights
from identity_matters.config import DataConfig, ModelConfig
from identity_matters.data import arrays, folder, source, tfds, tfds_builder, tfds_files
from identity_matters.distributed import parameter_server, rendezvous
from identity_matters.errors import UserError
from identity_matters.model import check_image_shape
from identity_matters.runs import config_json, directory, files, kept_products, machine, npz, signals, tables
from launch import config_flags, evaluate, near_identity, plot, train, trained_run
from launch.jobs import kubernetes, local, slurm
from launch.jobs.config import ClusterConfig
from shortcut_study import aggregation
from shortcut_study.curvature import examples

DOCS = pathlib.Path(__file__).parents[1] / "docs" / "guides"


def png(pixels: int) -> None:
    """Opens a PNG that declares one row of pixels and holds none."""
    parts = (b"IHDR", struct.pack(">IIBBBBB", pixels, 1, 8, 0, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b"")
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    folder._open_image(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def prepared(name: str):
    """Returns a check of a set's folder with a file of some bytes."""

    def check(size: int, tmp_path) -> None:
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
        tfds_files.check_files(str(tmp_path))

    return check


def tfds_set(side: int = 8, classes: int = 10) -> None:
    """Opens a TFDS set of square images, of which there is no more than its description."""
    feature = types.SimpleNamespace(np_dtype=np.uint8, shape=(side, side, 3))
    features = {"image": feature, "label": types.SimpleNamespace(num_classes=classes)}
    splits = {name: types.SimpleNamespace(num_examples=5) for name in ("train", "test")}
    builder = types.SimpleNamespace(name="a_set", info=types.SimpleNamespace(features=features, splits=splits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds, "prepared_builder", lambda *_: builder)
        patch.setattr(tfds, "image_and_label", lambda *_: ("image", "label"))
        tfds.TfdsSource(DataConfig("a_set"))


def after_empty(read):
    """Returns a read of one batch behind some empty ones."""
    image, label = np.zeros((1, 2, 2, 1), np.float32), np.zeros(1)
    return lambda count: list(read([(image[:0], label[:0])] * count + [(image, label)]))


def step(number: int) -> None:
    tables._check_row({"step": float(number)})


def header(size: int) -> None:
    """Reads the header of an array whose description is as long as can be before its values."""
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", size - 10) + text.ljust(size - 11) + b"\n"
    opened = types.SimpleNamespace(open=lambda _: io.BytesIO(content))
    npz.Member(opened, types.SimpleNamespace(filename="a", file_size=size)).read()


def comparator(side: int) -> None:
    check_image_shape(ModelConfig(network="all_cnn_c", image_shape=(-side, 40, 3)))


# A check that takes a number, the last number that it lets pass, and what it says of the next one.
LIMITS = {
    "labels": (lambda label: arrays.as_integers("y", np.array([label])), 99_999, "must lie in 0–99999"),
    "num_classes": (lambda count: DataConfig(num_classes=count), 100_000, "num_classes must be at most 100000"),
    "a whole number": (lambda count: ClusterConfig(slurm=True, hours=count), 2**32 - 1, "at most 4294967295"),
    "empty batches": (after_empty(lambda x: arrays.batches_of("x", x)), 9_999, "10,000 batches in a row"),
    "empty batches of a Hessian": (after_empty(examples._batches), 9_999, "10,000 batches in a row"),
    "pixels": (png, 2**26, "at most 67,108,864 in all are decoded"),
    "side of a set": (lambda side: tfds_set(side=side), 2**14, "which no set has"),
    "classes of a set": (lambda count: tfds_set(classes=count), 100_000, "which no set has"),
    "no side": (lambda side: tfds_set(side=-side), -1, "which no set has"),
    "no class": (lambda count: tfds_set(classes=-count), -1, "which no set has"),
    "text of a set": (prepared("label.labels.txt"), 2**24, "the 16,777,217 bytes of .* are too many"),
    "step of a table": (step, 2**53, "a step is 9007199254740994.0"),
    "header of an array": (header, 2**11, "EOF|bytes|header"),
    "image of a comparator": (comparator, -9, "needs images of at least 9 pixels a side, got 8x40"),
}  # fmt: skip
SPARSE = {"step of a table": 2}  # floats of that size are even


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_lets_pass_what_lies_at_it_and_nothing_beyond(name, tmp_path):
    check, last, message = LIMITS[name]
    given = (tmp_path,) if "text" in name else ()
    check(last, *given)
    with pytest.raises((UserError, ValueError), match=message):
        check(last + SPARSE.get(name, 1), *given)
    if name == "text of a set":  # but for shards, which are as long as their images
        os.remove(tmp_path / "label.labels.txt")
        prepared("a-train.tfrecord-00000-of-00001")(2**24 + 1, tmp_path)


def test_the_guides_say_how_long_the_workers_wait():
    cluster, reliability = (" ".join((DOCS / f"{name}.md").read_text().split()) for name in ("cluster", "reliability"))
    assert "wait ten minutes for each other" in cluster and rendezvous.RENDEZVOUS_TIMEOUT == 10 * 60
    assert "save at the same step within 30 s" in cluster and local.GRACE_PERIOD == 30
    assert f"`--signal=TERM@{slurm.GRACE_PERIOD}`" in cluster and slurm.GRACE_PERIOD == kubernetes.GRACE_PERIOD
    assert "exit with 75 within two minutes" in cluster and errors.EXIT_CONTINUE == 75
    assert "waits up to 3 minutes for the lock" in cluster and directory.LOCK_TIMEOUT == 3 * 60
    assert "after two minutes it is ended" in reliability and signals.GRACE_PERIOD == 2 * 60
    assert "the others notice within 10 s" in cluster and parameter_server.PATIENCE * parameter_server._POLL == 10
    assert local.FAILURE_TIMEOUT == 10 + signals._LONGEST_END  # they log it, and close what is open
    assert rendezvous.JOIN_TIMEOUT == local.GRACE_PERIOD  # meanwhile the chief answers no signal


@pytest.mark.parametrize("port, is_one", [(0, False), (1, True), (2**16 - 1, True), (2**16, False)])
def test_a_port_is_one_of_65535(port, is_one):
    text = json.dumps({"cluster": {"worker": [f"a:{port}"]}, "task": {"type": "worker", "index": 0}})
    if is_one:
        assert rendezvous.worker_addresses(text) == ([f"a:{port}"], 0)
    else:
        with pytest.raises(UserError, match=f"a:{port} has no port"):
            rendezvous.worker_addresses(text)


def test_ports_are_below_those_of_outgoing_connections(monkeypatch):
    monkeypatch.setattr(local.random, "choice", lambda ports: ports[0])
    assert local.free_ports(1) == [10_000]
    monkeypatch.setattr(local.random, "choice", lambda ports: ports[-1])
    assert local.free_ports(1) == [31_999]


@pytest.mark.parametrize("columns, width", [(300, 110), (100, 100), (20, 60)])
def test_the_help_is_as_wide_as_the_terminal_but_stays_readable(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text, long = " ".join(["ab"] * 99), "--" + "f" * 26
    lines = config_flags.wrapped_entries(
        "manual", [("--flag=NUMBER", text), (long, text), (long[1:], text)]
    ).splitlines()
    assert f"  {long}" in lines and " ".join(lines).count("ab") == 3 * 99
    assert lines[:3] == ["manual", "", "Flags:"] and max(map(len, lines)) == width - (width - 30 - 2) % 3
    assert [line[:30] for line in lines if line.startswith("  -")] == [
        f"{'  --flag=NUMBER':30}",
        f"  {long}",
        f"  {long[1:]} ",
    ]
    assert {line[:30] for line in lines[4:] if not line.startswith("  -")} == {" " * 30}


def test_the_time_left_is_in_seconds_below_ninety():
    assert [near_identity._duration(seconds) for seconds in (89, 90, 600)] == ["89 seconds", "2 minutes", "10 minutes"]


def test_logs_are_written_by_their_owner_and_read_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        files.open_log(str(tmp_path / "log")).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o640


@pytest.mark.parametrize("file, is_named", [(None, True), ("/t/x", True), ("/other", False)])
def test_an_error_of_a_file_in_a_temporary_folder_or_of_none_names_the_file_that_is_written(file, is_named):
    full = OSError(errno.ENOSPC, "No space left on device", *([file] if file else []))
    named = errors.unnamed_file("/run/model.keras", "/t/")(full)
    assert (str(named) if named else None) == (
        "cannot write /run/model.keras: No space left on device" if is_named else None
    )
    assert (errors.unnamed_file("/run/a")(full) is None) == (file is not None)
    assert errors.unnamed_file("/run/a")(ValueError("a")) is None


def test_digests_stay_as_earlier_versions_wrote_them():
    """Else what they began could not go on."""
    kernel = keras.Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="kernel")
    assert starting_weights._digest({"a/kernel": kernel}) == "6cd976cbbe2e0d8c"
    assert trained_run.weights_digest(types.SimpleNamespace(get_weights=lambda: [kernel.numpy()])) == "4372fe10e2902b8f"
    assert arrays.digest(np.arange(6).reshape(2, 3)) == "f5b77389"
    assert kept_products.digest(["a", np.arange(6.0).reshape(2, 3)]) == "5c930d36887e4fac18a97657"


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="Linux says there what the machine is")
def test_the_machine_is_what_linux_says():
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) * 1024  # MemTotal, kB
    assert machine.physical_memory() == pytest.approx(memory, rel=0.1)
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    assert machine.processor() in (names or {platform.machine()})
    assert machine.cores() == sorted(os.sched_getaffinity(0))


def test_messages_are_cut():
    assert (
        errors.truncated_repr("a" * 198) == repr("a" * 198)
        and errors.truncated_repr("a" * 199) == "'" + "a" * 199 + "…"
    )
    assert errors.first_line(ValueError("a" * 2000)) == "a" * 1900
    assert folder.shown("abcde") == "a, b, c, d, e" and folder.shown("abcdefg") == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize("size, reason", [(2**22, "weights"), (2**22 + 1, "more layers than a network has")])
def test_the_description_of_a_network_has_four_megabytes_at_most(size, reason, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as file:
        for name in ("config.json", "metadata.json", "model.weights.h5"):
            file.writestr(name, b"{}".ljust(size) if name == "config.json" else b"{}")
    if size == 2**22:
        assert len(safe_loading._read_members(str(tmp_path / "a.keras"))["config.json"]) == size
    else:
        with pytest.raises(UserError, match=reason):
            safe_loading._read_members(str(tmp_path / "a.keras"))


@pytest.mark.parametrize("depth, is_found", [(3, True), (4, False)])
def test_a_set_is_looked_for_three_folders_up(depth, is_found, tmp_path):
    """One names the set, one its config, one its version."""
    (tmp_path / "a_set" / "1.0.0").mkdir(parents=True)
    (tmp_path / "a_set" / "1.0.0" / "dataset_info.json").touch()
    deep = tmp_path.joinpath(*"abcd"[:depth])
    assert tfds_builder.found_instead("a_set", None, str(deep)).endswith(str(tmp_path)) == is_found


@pytest.mark.parametrize("gigabytes, is_taken", [(4, True), (4 - 2**-30, False)])
def test_a_command_with_less_than_four_gigabytes_of_address_space_ends_at_once(gigabytes, is_taken):
    code = "import sys, resource; sys.argv = ['-m']; resource.getrlimit = lambda _: ({}, -1); import launch"
    command = [sys.executable, "-c", code.format(int(gigabytes * 2**30))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) == is_taken and ("ulimit -v 4194304 or more" in done.stderr) != is_taken
    assert launch.MIN_ADDRESS_SPACE == 4 * 2**30


@pytest.mark.parametrize("count, is_named", [(0, False), (1, True), (3, True), (4, False)])
def test_runs_are_named_by_three_settings_at_most(count, is_named, monkeypatch):
    configs = {path: {f"field{i}": path for i in range(count)} for path in ("a", "b")}
    monkeypatch.setattr(plot, "read_config_json", lambda path: {"kind": "train", "config": configs[path]})
    assert (plot.names_of_runs(["a", "b"]) == ["a", "b"]) != is_named
    monkeypatch.setattr(plot, "read_config_json", {"a": {"kind": "train", "config": {"x": 1}}, "b": None}.get)
    assert plot.names_of_runs(["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize("losses, learned", [((1.0, 1.009, 1.0), False), ((1.0, 1.011, 1.0), True), ((1.0, 1.0), True)])
def test_a_network_learned_where_some_rate_differs_by_more_than_a_hundredth(losses, learned):
    rows = [row("norms", TWO, 2, 0, loss=loss, learning_rate=10.0**-i, status="done") for i, loss in enumerate(losses)]
    assert aggregation.best_rates(rows, "loss")[2].learned is learned


@pytest.mark.parametrize("change, rates", [(0.0099, {2: 0.1}), (0.0101, {})])
def test_a_rate_is_insensitive_where_the_loss_changes_by_less_than_a_hundredth(change, rates):
    rows = [row("norms", TWO, 2, 0, loss=2.0, perturbed_loss=2 * (1 + change), learning_rate=0.1)]
    assert aggregation.insensitive_rates(rows) == rates


def test_losses_below_rounding_count_as_rounding():
    rows = [
        row("norms", TWO, 2, 0, loss=loss, learning_rate=rate, status="done")
        for loss, rate in ((3e-21, 0.1), (2e-20, 0.2))
    ]
    best = aggregation.best_rates(rows, "loss")[2]
    assert (best.rate, best.mean) == (0.1, 1e-20)


@pytest.mark.parametrize("largest, images", [(2**20, 256), (2**28, 1), (2**29, 1)])
def test_a_batch_of_a_network_of_a_file_fills_a_gigabyte_at_most_but_has_an_image(largest, images, monkeypatch):
    monkeypatch.setattr(classifier, "largest_output", lambda _: largest)
    monkeypatch.setattr(classifier, "_class_names", lambda _: ())
    network = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    assert classifier._network_classifier(network, "a.keras").max_batch == images


@pytest.mark.parametrize("num_classes", [5, 6])
def test_a_top_5_error_is_printed_from_six_classes_on(num_classes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config_json, "read_config_json", lambda _: {"config": {"model": {"num_classes": num_classes}}})
    train._summarize({"step": 1, "test_top1_error": 0.5, "test_top5_error": 0.25}, str(tmp_path), False)
    found = {"top1_error": 0.5, "top5_error": 0.25, "num_examples": 4}
    monkeypatch.setattr(evaluation, "load_classifier", lambda *_: types.SimpleNamespace(num_classes=num_classes))
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: dict(found))
    evaluate.main(evaluate.EvaluateConfig(saved_model="/m"))
    assert capsys.readouterr().out.count("25.00%") == (2 if num_classes == 6 else 0)


@pytest.mark.parametrize(
    "shape, grey, is_summed",
    [
        ((3, 5, 3, 8), (3, 5, 1, 8), True),
        ((3, 5, 4, 8), (3, 5, 1, 8), False),
        ((3, 5, 3, 9), (3, 5, 1, 8), False),
        ((3, 5, 3, 8), (3, 5, 3, 8), False),
        ((3, 5, 3, 8), (5, 3, 1, 8), False),
        ((8,), (9,), False),
        ((3, 3, 3), (3, 3, 1), False),
    ],
)
def test_a_first_kernel_is_summed_over_three_colours_alone(shape, grey, is_summed):
    assert starting_weights._is_of_colours(shape, grey) is is_summed


@pytest.mark.parametrize(
    "dtype, rounding, limit",
    [(np.float32, 0.0, 1e-5), (np.float64, 0.0, 1e-12), (np.float32, 1e-4, 1e-3), (np.float64, np.nan, 1e-12)],
)
def test_a_kept_product_is_of_another_loss_where_it_differs_by_more_than_ten_times_its_rounding(
    dtype, rounding, limit, tmp_path
):
    vector, path = np.arange(1, 9, dtype=dtype), str(tmp_path / "kept")
    kept_products.KeptProducts(path, {}).of(lambda v: 1000 * v)(vector)
    for share, is_same in ((-0.9, True), (0.9, True), (-1.1, False), (1.1, False)):
        again = kept_products.KeptProducts(path, {}, rounding).of(
            lambda v, e=share * limit: (1000 * (1 + e) * v).astype(dtype)
        )
        with contextlib.nullcontext() if is_same else pytest.raises(ValueError, match="products of other loss"):
            np.testing.assert_array_equal(again(vector), 1000 * vector)


def test_a_kept_product_is_no_program(tmp_path):
    class Program:
        def __reduce__(self):
            return pathlib.Path.touch, (tmp_path / "ran",)

    kept = kept_products.KeptProducts(str(tmp_path / "kept"), {}).of(lambda v: v)
    kept(np.ones(1))
    (path,) = (tmp_path / "kept").glob("*.npy")
    np.save(path, np.array([Program()], object), allow_pickle=True)
    assert kept(np.ones(1)).tolist() == [1.0] and not (tmp_path / "ran").exists()


@pytest.fixture
def clock(monkeypatch):
    """clock(module): a module's time, which its sleep moves, as a list of one number."""

    def of(module):
        now = [1000.0]
        monkeypatch.setattr(
            module, "time",
            types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)),
        )  # fmt: skip
        return now

    return of


def test_after_ten_seconds_a_line_says_that_batches_may_have_no_end(clock, capsys):
    now, said = clock(arrays), []
    for _ in arrays.in_turn("x", (k for k in range(20))):
        now[0] += 1.01
        said.append(capsys.readouterr().err)
    assert [line[:24] for line in said if line] == ["note: x: 10 batches so f"] and said[10]


def test_after_five_seconds_a_line_says_who_is_waited_for_and_after_ten_minutes_they_are_lost(clock, monkeypatch):
    now, said = clock(rendezvous), []
    monkeypatch.setattr(rendezvous, "is_listening", lambda address: address == "a:1")
    monkeypatch.setattr("builtins.print", lambda line, **_: said.append((now[0] - 1000, line)))
    with pytest.raises(errors.WorkerLost, match="the chief .*b:1 could not be reached within 600 seconds"):
        rendezvous.await_listeners(["a:1", "b:1"], "the chief")
    ((at, line),) = said
    assert line == "the chief waits for b:1" and 5 < at < 5.2 and 600 < now[0] - 1000 < 600.2


@pytest.mark.parametrize(
    "ended, has_signal, seconds, code",
    [
        (-9, False, local.KILL_TIMEOUT, 137),  # 2: a worker was killed, which the others cannot notice
        (3, False, 15, 3),  # which they do within 10 seconds, and log
        (None, True, 30, errors.EXIT_CONTINUE),  # to save a checkpoint
    ],
)
def test_workers_that_do_not_end_are_killed_after(ended, has_signal, seconds, code, clock):
    now, signals_sent = clock(local), []

    def send(number):
        signals_sent.append((number, now[0]))
        codes[1] = -9 if number == 9 else codes[1]
        codes[0] = -9 if number == 9 and codes[0] is None else codes[0]

    codes, job = [ended, None], object.__new__(local._Job)
    job._workers = [types.SimpleNamespace(poll=lambda k=k: codes[k]) for k in range(2)]
    job._names, job._passed_on_at, job._signal, job.log = ["0", "1"], None, send, lambda line: None
    job._stop = types.SimpleNamespace(received=has_signal, latest_at=1000.0, number=15)
    assert job._wait() == code and seconds in (2, 15, 30)
    *_, (number, at) = signals_sent
    assert number == 9 and seconds <= at - 1000 < seconds + 0.25
    assert signals_sent[:-1] == [(15, 1000.0)] * has_signal


@pytest.mark.parametrize("later, kills", [(0.45, False), (0.55, True)])
def test_a_second_signal_within_half_a_second_counts_as_the_first(later, kills):
    sent, job = [], object.__new__(local._Job)
    job._passed_on_at, job._signal, job.log = None, sent.append, lambda line: None
    job._stop = types.SimpleNamespace(received=True, latest_at=1000.0, number=2)
    job._pass_on_signals()
    job._stop.latest_at += later
    job._pass_on_signals()
    assert sent == [15] + [9] * kills


@pytest.mark.parametrize("counts, is_one", [((10, 14), True), ((11, 13), False), ((2,), True), ((1, 1, 1), True)])
def test_labels_that_are_sorted_by_chance_once_in_a_million_times_are_taken_for_sorted(counts, is_one):
    """Of 24 labels 1,961,256 or 2,496,144 orders, of which two are sorted."""
    assert source.is_mixed(np.repeat(np.arange(len(counts)), counts)) is is_one


@pytest.mark.parametrize("num_fitting", [0, 1])
def test_weights_to_begin_with_have_one_variable_at_least_that_fits(num_fitting, monkeypatch):
    given, network = (
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False, name=name)], name="network")
        for name in ("a", "a" if num_fitting else "b")
    )
    monkeypatch.setattr(starting_weights, "load_source", lambda _: given)
    if num_fitting:
        assert starting_weights.take_weights(network, "given").startswith("1 of the network's 1 variables begin with")
        np.testing.assert_array_equal(network.get_weights()[0], given.get_weights()[0])
    else:
        with pytest.raises(UserError, match="init_from given has no weights of the names and shapes"):
            starting_weights.take_weights(network, "given")
