"""Which commands and Python snippets of the pages the tests run; the site marks all others as not run by the tests.

A command has run if one of these tables begins with it. A snippet is named by its last line; an entry that ends in … is
the beginning of what it names. tests/test_page_commands.py runs the first table in this order; the second has, by the
test or the script that runs them, the others.
"""

import ast
import html
import re
from typing import NamedTuple

_SMALL = "--stem_width=4 --widths=4,8 --blocks_per_stage=1,1 --batch_size=16"
_TINY = f"{_SMALL} --train_steps=4 --eval_every=4 --checkpoint_every=4"
_FIRST = f"{_TINY} --train_examples=200 --eval_examples=50 --decay_steps=3"

# Commands, with the flags that make them small, and snippets, with what is replaced in them.
RUN_HERE: dict[str, str | dict[str, str]] = {
    "python -m launch.train --run_dir=runs/first": _FIRST,
    "python -m launch.check_theory --run_dir=runs/theory": "--trials=1 --nofigures",
    "python -m launch.shortcut_study --preset=smoke --run_dir=runs/study": "--examples=20 --depths=6 --num_runs=1",
    "python -m launch.plot --run_dir=runs/first": "",
    "python -m launch.train --preset=mnist --train_steps=2000 --run_dir=runs/first": f"{_FIRST} --train_steps=6",
    'train(config, "runs/callbacks", callbacks=[Spread(), stopping, schedule], optimizer=sgd)': {},
    'train(config, "runs/restarts", optimizer=keras.optimizers.schedules.CosineDecayRestarts(0.1, 500))': {},
    "python -m launch.train --config=runs/adam/config.json --run_dir=runs/adam": "",
    'model.compile(Muon(0.02, weight_decay=0.1), "sparse_categorical_crossentropy")': {},
    "python -m launch.train --images=photos --test_share=0.2 --image_size=32 --run_dir=runs/photos": _TINY,
    "print(answers[0].file, answers[0].class_name, round(answers[0].probability, 3))": {
        "runs/tuned": "runs/photos",
        "photos/one": "photos/ant",
    },
    "python -m launch.evaluate --pretrained=digits": "",
    "python -m launch.evaluate --pretrained=digits --dataset=mnist --data_dir=data": "",
    "python -m launch.evaluate --pretrained=cifar10_fast --data_dir=data": "",
    "python -m launch.evaluate --pretrained=cifar10 --data_dir=data": "",
    "python -m launch.export_npz --dataset=cifar10 --data_dir=data --download --npz=cifar10.npz": "",
    'spectrum.plot().savefig("spectrum.png")': {
        "[:500]": "[:20]",
        "train_labels[:20])": "train_labels[:20], order=3, num_vectors=2)",
    },
    "model.fit(x, y, epochs=3, verbose=0, callbacks=[along])": {},
    "operator = h.to_scipy()  # for scipy.sparse.linalg: eigsh, cg": {},
    "python -m launch.hessian_spectrum --saved_run=runs/first …": "--examples=20 --order=5 --num_vectors=2",
    "python -m launch.near_identity --saved_run=runs/first --run_dir=runs/first_blocks": "--examples=20",
    "python -m launch.report --runs=runs/first,runs/theory,runs/study --run_dir=runs/report": "",
    "python -m launch.plot --run_dir=runs/first --format=pdf --style=paper": "",
    "python -m launch.report --runs=docs/runs/paper,docs/runs/paper_muon,runs/theory --run_dir=runs/report_paper": "",
    "python -m launch.plot --run_dir=docs/runs/paper …": "",
    "python -m launch.plot --run_dir=docs/runs/near_identity_paper …": "",
    "python -m launch.train --preset=cifar10_wide --mixed_precision …": _TINY,
    "python -m launch.train --preset=cifar10_wide --use_batch_norm --residual_initializer=standard "
    "--learning_rate=0.03 --mixed_precision …": _TINY,
    "python -m launch.train --npz=digits.npz …": f"{_TINY} --warmup_steps=1",
    'np.savez("cifar10_jpeg.npz", **arrays)': {},
    "python -m launch.train --preset=mnist --learning_rate=$rate --run_dir=runs/rate_$rate": _FIRST,
    "python -m launch.plot --run_dir=runs/rate_0.01 --beside=runs/rate_0.03,runs/rate_0.1": "",
    "python -m launch.relu_search --trials=1000 --run_dir=runs/relu": "--trials=1",
    "python -m launch.relu_search --run_dir=runs/relu": "--trials=1",
    "python -m launch.check_theory --claim=li.no_more_difficult": "",
    "python -m launch.check_theory --claim=hm.theorem_2.1": "",
    "python -m launch.check_theory --draw=identity_ball,memorized_plane,spectra --run_dir=runs/lecture": "",
    "python -m launch.shortcut_study --preset=smoke --run_dir=runs/fig5": "--examples=20 --depths=6 --num_runs=1",
    "python -m launch.plot --run_dir=runs/fig5": "",
    "python -m launch.shortcut_study --preset=smoke --figure=5 --hessian=tape --run_dir=runs/tape": (
        "--examples=20 --depths=6 --num_runs=1"
    ),
    'hessian = Hessian(network.to_keras(network.initialize("zero", seed=0)), x, y)': {},
    "python -m website.story": "",
    "python -m launch.plot --run_dir=runs/first --beside=runs/second,runs/third": "",
    "python -m theory.claims > docs/reference/claims.md": "",
    "python -m website.sentences > docs/reference/sentences.md": "",
    "python -m website.tables": "",
}

_VENV = "python3 -m venv .venv && . .venv/bin/activate && pip install -e"
RUN_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "tests/test_readme.py::test_the_start_commands_work_in_a_fresh_clone": (
        f"{_VENV} . && python -m launch.train --run_dir=runs/first",
    ),
    "tests/test_readme.py::test_a_snippet_of_the_readme_prints_what_stands_below_it": (
        'print(curvature.spectrum(load("digits"), mnist_sample().train_images[:100], …',
    ),
    "tests/launch/test_images.py::test_the_guides_commands_train_on_a_folder_from_shipped_weights": (
        "python -m launch.train --preset=cifar10_fast --images=photos …",
        "python -m launch.evaluate --saved_model=runs/tuned",
        "python -m launch.classify --saved_model=runs/tuned photos/one",
        "python -m launch.train --config=runs/tuned/config.json --learning_rate=0.01 --run_dir=runs/slower",
    ),
    "tests/launch/test_images.py::test_the_guides_lines_of_python_fine_tune_on_a_folder": (
        'print(train(config, "runs/python", init_from="cifar10_fast")["test_top1_error"])',
    ),
    "tests/identity_matters/test_exports.py::test_the_saved_model_answers_with_probabilities": (
        'print(serve(images=images)["probabilities"].numpy().round(3))',
    ),
    "tests/identity_matters/test_exports.py::test_tflite_answers_as_the_saved_model": (
        'open("digits.tflite", "wb").write(converted)',
    ),
    "tests/identity_matters/test_exports.py::test_onnx_answers_as_the_saved_model": (
        'network.export("digits.onnx", format="onnx", verbose=False)',
    ),
    "tests/launch/test_faults.py::test_two_workers_end_as_one": (
        "python -m launch.cluster --num_workers=2 --preset=mnist --run_dir=runs/pair",
    ),
    "tests/identity_matters/test_asynchronous.py::test_two_workers_apply_every_update": (
        "python -m launch.cluster --strategy=parameter_server …",
    ),
    "tests/identity_matters/test_jax.py::test_the_launcher_trains_from_an_npz_file_on_jax_without_tensorflow": (
        "KERAS_BACKEND=jax python -m launch.train --run_dir=runs/jax",
    ),
    "tests/benchmarks/test_benchmarks.py::test_a_benchmark_prints_its_table": (
        *(
            f"python -m benchmarks.{name}"
            for name in ("coverage", "hessian", "input_stream", "lanczos", "scaling", "train_step")
        ),
    ),
    "tests/test_site.py::test_every_link_of_a_built_page_leads_somewhere": ("mkdocs build --strict",),
    ".ci/run": (
        "pip install -e '.[docs]' && mkdocs build --strict",
        f"{_VENV} '.[test]' && python -m pytest",
        'python -m pytest -m "slow and not nightly" -n 3',
        "python -m pytest tests/shortcut_study/test_dynamics.py -k singular",
        "python -m pytest -n 0 tests/theory/test_mutations.py -k hm.theorem_2.1",
        "python -m pytest -n 0 -m slow tests/launch/test_slurm.py",
    ),
    "tests/identity_matters/test_near_identity.py::test_measures_of_a_block_that_is_known": (
        "rows = list(near_identity.measure(network, images, labels))",
    ),
    "tests/theory/test_claims.py::test_every_claim_holds_as_the_table_says": ('check("hm.theorem_2.1")',),
}
RUN_PAGES = {"start/tour.md": "tests/test_tour.py::test_every_cell_of_the_tour_runs"}  # their snippets
ENTRIES = [*RUN_HERE, *(command for commands in RUN_ELSEWHERE.values() for command in commands)]

MARK = "not run by the tests"
_PROGRAM = re.compile(
    r"(?:\w+=\S+ )*(?:(?:python3?|pip|mkdocs|pre-commit|tensorboard|sbatch|squeue|tail|kubectl) |export \w+=)|FROM \S+:"
)
_CODE = re.compile(
    r'<div class="highlight">(?P<block><pre>.*?</pre>)</div>|<a [^>]*><code>|<code>(?P<inline>[^<]*)</code>', re.S
)


class Command(NamedTuple):
    """A command, or the last line of a Python snippet, and the lines of its block on which it stands."""

    text: str
    first: int
    last: int


def commands_in(block: str) -> list[Command]:
    """Returns the commands of a block of code, without comments, prompts and line breaks, or its Python snippet."""
    lines, commands, first = block.rstrip().splitlines(), [], 1
    if is_python(block):
        return [Command(lines[-1], 1, len(lines))]
    for last, line in enumerate(lines, 1):
        if not line.endswith("\\"):
            text = "".join(part.removesuffix("\\") for part in lines[first - 1 : last])
            commands.append(Command(" ".join(text.partition("  #")[0].removeprefix("$ ").split()), first, last))
            first = last + 1
    return [command for command in commands if _PROGRAM.match(command.text)]


def is_python(block: str) -> bool:
    """Returns whether a block is Python that imports or calls something; plain numbers and words parse too."""
    try:
        nodes = list(ast.walk(ast.parse(block)))
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom | ast.Call) for node in nodes)


def names(entry: str, command: str) -> bool:
    """Returns whether an entry of the tables names a command."""
    return entry == command or (entry.endswith("…") and command.startswith(entry[:-1]))


def has_run(command: str) -> bool:
    """Returns whether the tests run a command, or one that begins with it, or a snippet with this last line."""
    return any(names(entry, command) or entry.startswith(f"{command} ") for entry in ENTRIES)


def with_marks(page: str, uri: str) -> str:
    """Returns the HTML of a page with a mark at each command and each snippet that no test runs."""

    def marked(code: re.Match) -> str:
        if code["block"]:
            mark = _mark_of_block(html.unescape(re.sub("<[^>]*>", "", code["block"])), uri)
            return f'<div class="highlight">{code["block"]}<p class="not-run">{mark}</p></div>' if mark else code[0]
        command = " ".join(html.unescape(code["inline"] or "").split())
        said = page[: code.start()].endswith("not run: ")
        return code[0] + (f' <small class="not-run">{MARK}</small>' if _needs_mark(command) and not said else "")

    return _CODE.sub(marked, page)


def _mark_of_block(block: str, uri: str) -> str:
    """Returns the mark of a block, with the lines of its untested commands if it has others too."""
    commands = commands_in(block)
    left = [command for command in commands if not has_run(command.text)]
    if not left or (uri in RUN_PAGES and is_python(block)):
        return ""
    lines = ", ".join(f"{first}–{last}" if last > first else f"{first}" for _, first, last in left)
    return MARK if left == commands else f"{MARK}: line{'' if lines.isdigit() else 's'} {lines}"


def _needs_mark(command: str) -> bool:
    """Returns whether code in a line is a command that no test runs; with words such as NAME in it, it is a pattern."""
    return bool(_PROGRAM.match(command)) and not re.search(r"\b[A-Z]{2,}\b(?![_=])", command) and not has_run(command)
