"""Plants small errors one by one, and counts those that the fast tests notice.

    python -m tests.mutation_sweep theory --report=sweep.txt --minutes=60
    python -m tests.mutation_sweep theory/descent/widened.py --sample=50
    python -m tests.mutation_sweep --sample=100 --seed=7 --minutes=25 --report=sweep.txt

The last draws from all four packages, the flags that launchers pass on included, and has no time to run every test
first: a mutant meets the tests of the files that import its module, those that run soonest first, for SAMPLED_SECONDS
of the processor or until one fails. A test that has failed must pass without the mutant, or it does not count.
A test that starts another process never sees such a mutant, and TensorFlow takes most of those seconds. So

    python -m tests.mutation_sweep --again=sweep.txt --on_disk --report=left.txt

writes each mutant of sweep.txt that went unnoticed into a copy of the project, and runs there the tests of the files
that import its module, nearest first, slow ones too, for DISK_SECONDS or until one fails; a failure counts as above.
A mutant whose tests did not all end in that time is called unfinished: they may notice it or not.

With paths every test is run once, and the lines that it executes are recorded. Then, for each mutant (tests/mutants.py
has the kinds), a fork of the process that has imported everything plants it and runs the tests that execute its line,
for MUTANT_SECONDS or until one fails. Tests of TEST_SECONDS or more, and those of tests/theory/test_mutations.py, which
pass where a check fails, are left out. Mutants that change no value, and functions of which none is right or wrong,
stand in mutation_equivalents.txt, with the reason; they are not planted. A mutant that hangs is noticed; one that no
test executes is not.
"""

import argparse
import ast
import collections
import functools
import importlib
import itertools
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import hypothesis
import pytest
from _pytest import runner

from tests import mutants

ROOT = pathlib.Path(__file__).parents[1]
EQUIVALENTS = pathlib.Path(__file__).with_name("mutation_equivalents.txt")
# Drawing, tables, files, messages; the claims' checks, which are tests themselves; what only makes things faster; what
# is a few lines around the products of a Keras model, with tests of seconds each.
# Nor are drawn: drawing, claims' checks, texts; given_optimizer, whose tests start TensorFlow at import; jax_backend,
# whose tests run in a process of their own; piecewise_gradient, which is compiled before an error can be planted.
STARTS_TENSORFLOW = "tests/identity_matters/test_given_optimizer.py"
OF_ALL_PACKAGES = [f"tests/test_{name}.py" for name in ("doctests", "limits", "measured_runs", "study_pages")]
DOCTESTS = "tests/test_doctests.py::test_the_examples_of_a_module_give_what_they_say"  # [module]
DRAWING = (
    r"given_optimizer|jax_backend|piecewise_gradient|figures|_figure$|figure_\w+$|claim|table_1|theory\.parallel"
    r"|mutations|measured|report|story|terminal|silence"
)
OUT_OF_SCOPE = re.compile(
    r"figures|claim|target_map|table_1|keras_network|theory\.parallel|mutations|measured|dataset|jobs|report|config"
    r"|architectures|callback|checks|curvature\.operator|objective|examples|dtypes|watched|backend|convolutional|model_spectrum|curvature$"
)
TEST_SECONDS, MUTANT_SECONDS = 3, 4  # of the processor, as other work may go on beside
DISK_SECONDS = 240  # of the clock
SAMPLED_SECONDS = 20  # to import TensorFlow's device and train a tiny network takes most of it
PACKAGES = ("identity_matters", "shortcut_study", "theory", "launch")
NOTICED = ("killed", "timed out")


class Sweep:
    """A pytest plugin that runs the tests in forks: once traced, then with each mutant."""

    def __init__(self, planted: list[mutants.Mutant], report: str, minutes: float) -> None:
        self.planted, self.report, self.end = planted, report, time.monotonic() + 60 * minutes
        self.outcomes, self.failures = {}, collections.Counter()

    def pytest_configure(self) -> None:
        hypothesis.settings.register_profile(
            "sweep", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), database=None
        )
        hypothesis.settings.load_profile("sweep")  # nobody reads the smallest example
        if not all(mutant.module.startswith("theory") for mutant in self.planted):
            import tensorflow as tf

            tf.function = functools.partial(tf.function, autograph=False)  # it would read the source, not the mutant

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items if "test_mutations" not in item.nodeid}
        context = sys.modules.get("tensorflow.python.eager.context")
        if context and context.context()._initialized:
            pytest.exit("a test's module makes a tensor at import: no fork survives a TensorFlow that runs", 2)
        self.sweep(items)
        return True

    def sweep(self, items: dict[str, pytest.Item]) -> None:
        """Traces all tests, then plants each mutant before those that execute its lines."""
        traces = in_fork(lambda: traced([*items.values()], {module_file(m.module) for m in self.planted}), 3600)[1]
        fast = [items[name] for name, (seconds, _) in traces.items() if seconds < TEST_SECONDS]
        print(f"{len(fast)} of {len(items)} tests, {len(self.planted)} mutants", flush=True)
        with open(self.report, "w") as report:
            for mutant in self.planted:
                if time.monotonic() > self.end:
                    break
                covering = [item for item in fast if self.runs(mutant, traces[item.nodeid][1])]
                covering.sort(key=lambda item: -self.value(mutant, item.nodeid, *traces[item.nodeid]))
                self.outcomes[mutant.key], test = outcome(mutant, covering)
                self.failures[mutant.module, test] += 1
                print(self.outcomes[mutant.key], mutant.key, test, sep="\t", file=report, flush=True)

    def value(self, mutant: mutants.Mutant, test: str, seconds: float, lines: dict[str, list[int]]) -> float:
        """How soon to run a test: by how often it failed in this module, or how little else it runs, a second."""
        share = len(lines.get(module_file(mutant.module), ())) / sum(map(len, lines.values()))
        return (self.failures[mutant.module, test] + share) / (seconds + 0.02)

    def runs(self, mutant: mutants.Mutant, lines: dict[str, list[int]]) -> bool:
        """Whether a test executes the mutant's lines, or those that read the constant."""
        if not set(mutant.lines).isdisjoint(lines.get(module_file(mutant.module), ())):
            return True
        is_constant = not isinstance(mutant.tree, ast.FunctionDef)
        return is_constant and any(lines_reading(f, mutant.definition[0]) & set(found) for f, found in lines.items())


class Sample(Sweep):
    """A sweep that traces nothing: each mutant meets the tests of the files that import its module."""

    limit = SAMPLED_SECONDS

    def sweep(self, items: dict[str, pytest.Item]) -> None:
        """Plants each mutant before the tests that import its module."""
        self.items, self.seconds, self.is_sound = items, {}, {}
        with open(self.report, "w") as report:
            for mutant in self.planted:
                if time.monotonic() > self.end:
                    break
                end, test = self.outcome(mutant)
                self.outcomes[mutant.key] = end
                self.failures[mutant.module, test] += 1
                print(end, mutant.key, test, sep="\t", file=report, flush=True)

    def outcome(self, mutant: mutants.Mutant) -> tuple[str, str]:
        """Plants a mutant; a test that also fails without it is left out from then on, and the others are run again."""
        while True:
            tests = [item for item in self.importing(mutant) if self.is_sound.get(item.nodeid, True)]
            end, test = outcome(mutant, tests, self.limit, self.seconds)
            if end != "killed" or not test or self.passes_alone(test):
                return end, test

    def passes_alone(self, test: str) -> bool:
        """Whether a test passes in a fork without any mutant."""
        if test not in self.is_sound:
            end, passed = in_fork(lambda: passes(self.items[test], None), 3 * self.limit)
            self.is_sound[test] = end == "ended" and bool(passed)
        return self.is_sound[test]

    def importing(self, mutant: mutants.Mutant) -> list[pytest.Item]:
        """The tests of the files that name a module, in the order in which it is worth to run them; then its package's.

        The last see what is reached by a table, as claims' checks are, where --seconds leave them the time.
        """
        package, files = mutant.module.partition(".")[0], {item.path for item in self.items.values()}
        of_package = {file: 4 for file in files if file.parent.name == package}
        rank = of_package | {f: place for f in files if (place := distance(f, mutant.module)) is not None}

        def order(item: pytest.Item) -> tuple[float, ...]:
            has_failed = self.failures[mutant.module, item.nodeid]
            return -has_failed, rank.get(item.path, 0), self.seconds.get(item.nodeid, 1.0)

        doctest = f"{DOCTESTS}[{mutant.module}]"
        return sorted((i for i in self.items.values() if i.path in rank or i.nodeid == doctest), key=order)


class Disk:
    """A copy of the project in a temporary folder, into whose files mutants are written."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self.is_sound = root, {}
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".git", "__pycache__"), symlinks=True)
        self.files = sorted((ROOT / "tests").rglob("test_*.py"))

    def outcome(self, mutant: mutants.Mutant, seconds: float) -> tuple[str, str]:
        """Writes a mutant into its file, runs the tests, puts the file right again."""
        path, end = mutant.file.relative_to(ROOT), time.monotonic() + seconds
        near = {file: place for file in self.files if (place := distance(file, mutant.module)) is not None}
        direct, others = ([str(f.relative_to(ROOT)) for f in near if (near[f] > 1) == far] for far in (False, True))
        direct.sort(key=lambda file: near[ROOT / file])
        direct += [f"{DOCTESTS}[{mutant.module}]"] * (">>> " in mutant.file.read_text())
        of_each = itertools.product((direct, others), ("not slow and not nightly", "slow and not nightly"))
        for file, marker in ((file, marker) for files, marker in of_each for file in files):
            while time.monotonic() < end:
                (self.root / path).write_bytes(mutant.written(mutant.file.read_bytes()))
                unsound = [f"--deselect={test}" for test, is_sound in self.is_sound.items() if not is_sound]
                test = self.failure([file, "-m", marker, *unsound], end - time.monotonic())
                (self.root / path).write_bytes(mutant.file.read_bytes())
                if not test:
                    break
                if test not in self.is_sound:
                    self.is_sound[test] = self.failure([test, "-m", marker], seconds) == ""
                if self.is_sound[test]:
                    return "killed", test
        return "unfinished" if time.monotonic() > end else "survived" if near else "not covered", ""

    def failure(self, arguments: list[str], seconds: float) -> str | None:
        """The first test that fails, or the file whose import does; "" if none does, None: in some seconds."""
        command = [sys.executable, *"-m pytest -x -q -n 0 --tb=no -p no:cacheprovider".split(), *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        child = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            printed = child.communicate(timeout=max(seconds, 0))[0]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed, re.M)
        is_broken = child.returncode in (3, 4)  # before the first test: a conftest.py that cannot be imported, say
        return failed[1] if failed else arguments[0] if is_broken else ""


def swept_on_disk(planted: list[mutants.Mutant], report: str, seconds: float, minutes: float) -> dict[str, str]:
    """The outcome of each mutant, written into its file."""
    outcomes, end = {}, time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder, open(report, "w") as lines:
        disk = Disk(pathlib.Path(folder) / "project")
        for mutant in planted:
            if time.monotonic() > end:
                break
            outcomes[mutant.key], test = disk.outcome(mutant, seconds)
            print(outcomes[mutant.key], mutant.key, test, sep="\t", file=lines, flush=True)
    return outcomes


@functools.cache
def distance(file: pathlib.Path, module: str) -> int | None:
    """0 for the file of tests of a module, 1 for one that imports it, 2 for one of a module that does, 3; else None."""
    if file.name == f"test_{module.split('.')[-1]}.py":
        return 0
    reached = near = {module}
    for steps in (1, 2, 3):
        if any(names_module(file, name) for name in near):
            return steps
        near = set().union(*map(users, near)) - reached
        reached = reached | near
    return None


@functools.cache
def users(module: str) -> set[str]:
    """The modules that import a module, and its package."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if names_module(file, module)]
    package = ROOT.joinpath(*module.split(".")[:-1], "__init__.py")
    files += [package] if package.exists() and "import" in text(package) else []  # which gives names of its modules
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files}


@functools.cache
def names_module(file: pathlib.Path, module: str) -> bool:
    """Whether a file imports a module, or launches it by its name."""
    package, _, name = module.rpartition(".")
    imports = rf"(from|import) {re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
    launches = rf'|launch(ed)?\(\s*"{name}"' if package == "launch" else ""
    return bool(re.search(imports + launches, text(file)))


text = functools.cache(pathlib.Path.read_text)


@functools.cache
def lines_reading(file: str, name: str) -> set[int]:
    """The lines of a file in which a name stands."""
    source = pathlib.Path(file).read_text().splitlines()
    return {number for number, line in enumerate(source, 1) if re.search(rf"\b{name}\b", line)}


def module_file(module: str) -> str:
    """The file of an imported module."""
    return importlib.import_module(module).__file__


def in_fork(function: Callable[[], object], seconds: float) -> tuple[str, object]:
    """How a function ended in a child process: "ended" with its result, "timed out" or "killed" by an error."""
    with tempfile.TemporaryFile("w+") as answer:
        if not (child := os.fork()):
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its default action ends the process, in C code too
            signal.setitimer(signal.ITIMER_REAL, 30 * seconds)
            size = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + 4 * 2**30,) * 2)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1), os.dup2(silence, 2)
            try:
                json.dump(function(), answer)
                answer.flush()
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            return "timed out" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "killed", None
        answer.seek(0)
        return ("ended", json.loads(text)) if (text := answer.read()) else ("killed", None)


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a test passes; fixtures that the following test needs stay."""
    return all(report.passed for report in runner.runtestprotocol(item, log=False, nextitem=following))


def traced(tests: list[pytest.Item], files: set[str]) -> dict[str, tuple[float, dict[str, list[int]]]]:
    """Of each test that passes its seconds, and the lines of our files that it executes."""
    found, lines = {}, collections.defaultdict(set)

    def on_line(frame: object, event: str, _: object) -> Callable:
        lines[frame.f_code.co_filename].add(frame.f_lineno)
        return on_line

    def on_call(frame: object, event: str, _: object) -> Callable | None:
        return on_line if frame.f_code.co_filename in files else None

    threading.settrace(on_call)
    for item in tests:
        lines.clear()
        start = time.process_time()
        sys.settrace(on_call)
        passed = passes(item, None)  # with all of its fixtures, whoever shares them
        sys.settrace(None)
        if passed:
            executed = {file: sorted(numbers) for file, numbers in lines.items()}
            found[item.nodeid] = time.process_time() - start, executed
    return found


def outcome(
    mutant: mutants.Mutant, tests: list[pytest.Item], limit: float = MUTANT_SECONDS, seconds: dict | None = None
) -> tuple[str, str]:
    """What the tests say of a mutant, killed, timed out, survived or not covered, and the test that failed.

    Args:
      limit: Seconds of the processor after which no further test begins.
      seconds: Filled with those that each test took.
    """
    if not tests:
        return "not covered", ""

    def first_failure() -> tuple[str, dict[str, float]]:
        mutant.plant()
        start, took = time.process_time(), {}
        for item, following in zip(tests, [*tests[1:], None]):
            before = time.process_time()
            if before - start > limit:
                break
            if not passes(item, following):
                return item.nodeid, took
            took[item.nodeid] = time.process_time() - before
        return "", took

    end, answer = in_fork(first_failure, 2 * limit)
    test, took = answer or ("", {})
    (seconds if seconds is not None else {}).update(took)
    return (end if end != "ended" else "killed" if test else "survived"), test or ""


def table(outcomes: dict[str, str]) -> str:
    """A row a package: mutants, and how many are killed, timed out, survived, not covered."""
    counts = collections.defaultdict(collections.Counter)
    for key, outcome in outcomes.items():
        for name in (key.split(":")[0], "all"):
            counts[name][outcome] += 1
    columns = (*NOTICED, "unfinished", "survived", "not covered")
    lines = [f"{'module':45}{'mutants':>9}" + "".join(f"{column:>13}" for column in columns) + f"{'noticed':>10}"]
    for name, count in counts.items():
        share = sum(count[column] for column in NOTICED) / count.total()
        lines.append(f"{name:45}{count.total():9}" + "".join(f"{count[c]:13}" for c in columns) + f"{share:10.1%}")
    return "\n".join(lines)


def main(arguments: list[str]) -> dict[str, str]:
    """Sweeps, prints the table and returns the outcome of each mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or folders of ours; none: a sample of all four packages")
    parser.add_argument("--tests", nargs="*", help="of theory and shortcut_study, or those of the sampled packages")
    parser.add_argument("--report", default=os.devnull, help="file for a line a mutant")
    parser.add_argument("--seconds", type=float, help="a sampled mutant: of the processor, or on disk of the clock")
    parser.add_argument("--again", help="a report: only its mutants that went unnoticed")
    parser.add_argument("--on_disk", action="store_true", help="write each mutant into a copy of the project")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stops then: what was planted is a sample")
    parser.add_argument("--sample", type=int, help="how many mutants at most")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    chosen = parser.parse_args(arguments)
    listed = {line for line in EQUIVALENTS.read_text().splitlines() if not line.startswith("#")}
    outside = OUT_OF_SCOPE if chosen.paths else re.compile(DRAWING)
    planted = [m for m in mutants.of_modules(ROOT, chosen.paths or PACKAGES) if not outside.search(m.module)]
    planted = [m for m in planted if not {m.key, m.key.split(": ")[0]} & listed]
    if chosen.again:
        rows = [line.split("\t") for line in pathlib.Path(chosen.again).read_text().splitlines()]
        unnoticed = {key for outcome, key, _ in rows if outcome not in NOTICED}
        planted = [mutant for mutant in planted if mutant.key in unnoticed]
    random.Random(chosen.seed).shuffle(planted)
    planted = planted[: chosen.sample]
    if chosen.on_disk:
        outcomes = swept_on_disk(planted, chosen.report, chosen.seconds or DISK_SECONDS, chosen.minutes)
        print(table(outcomes))
        return outcomes
    sweep = (Sweep if chosen.paths else Sample)(planted, chosen.report, chosen.minutes)
    sweep.limit = chosen.seconds or SAMPLED_SECONDS
    folders = ("theory", "shortcut_study") if chosen.paths else PACKAGES
    tests = chosen.tests or [f"tests/{folder}" for folder in folders] + [f"--ignore={STARTS_TENSORFLOW}"]
    tests += [] if chosen.tests or chosen.paths else OF_ALL_PACKAGES
    pytest.main(["-q", "-s", "-n", "0", "-p", "no:cacheprovider", *tests], plugins=[sweep])
    print(table(sweep.outcomes))
    return sweep.outcomes


if __name__ == "__main__":
    main(sys.argv[1:])
