"""Which commands and Python snippets of the pages the tests run; the site marks all others as not run by the tests.

A command has run if one of this table begins with it. A snippet is named by its last line. The first table is what
tests/test_page_commands.py runs, in this order; the second names the test, or the script, that runs the others.
"""

import ast
import html
import re
from collections.abc import Iterator
from typing import NamedTuple

_TINY = "--stem_width=4 --widths=4,8 --blocks_per_stage=1,1 --batch_size=16 --train_steps=4 --eval_every=4"
_FIRST = f"{_TINY} --train_examples=200 --eval_examples=50 --decay_steps=3"

# Commands, with the flags that make them small, and snippets, with what is replaced in them.
RUN_HERE: dict[str, str | dict[str, str]] = {
    "python -m launch.train --run_dir=runs/first": _FIRST,
    "python -m launch.check_theory --run_dir=runs/theory": "--trials=1 --nofigures",
    "python -m launch.shortcut_study --preset=smoke --run_dir=runs/study": "--examples=20 --depths=6 --num_runs=1",
    "python -m launch.plot --run_dir=runs/first": "",
    "python -m launch.train --preset=mnist --train_steps=2000 --run_dir=runs/first": f"{_FIRST} --train_steps=6",
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
    'spectrum.plot().savefig("spectrum.png")': {"[:500]": "[:20]"},
    "model.fit(x, y, epochs=3, verbose=0, callbacks=[along])": {},
    "operator = h.to_scipy()  # for scipy.sparse.linalg: eigsh, cg": {},
    "python -m launch.hessian_spectrum --saved_run=runs/first --run_dir=runs/first_spectrum": (
        "--examples=20 --order=5 --num_vectors=2"
    ),
    "python -m launch.near_identity --saved_run=runs/first --run_dir=runs/first_blocks": "--examples=20",
    "python -m launch.report --runs=runs/first,runs/theory,runs/study --run_dir=runs/report": "",
    "python -m launch.plot --run_dir=runs/report --format=pdf": "",
    "python -m launch.report --runs=docs/runs/paper,docs/runs/paper_muon,runs/theory --run_dir=runs/report_paper": "",
    "python -m launch.cluster --slurm --nodes=6 --gpus_per_node=8 --cpus_per_node=32 --memory_per_node=200 --hours=48 "
    "--preset=imagenet_wide --batch_size=384 --decay_steps=6672 --train_steps=466667 --data_dir=/shared/tfds "
    '--setup="source /shared/venv/bin/activate" --run_dir=/shared/runs/wide --write=job.sbatch': "",
    "python -m launch.cluster --slurm --nodes=4 --gpus_per_node=8 --run_dir=runs/gpus --write=job.sbatch": "",
    "python -m launch.cluster --kubernetes --image=registry.example/identity-matters:1 --volume_claim=shared "
    "--nodes=6 --gpus_per_node=8 --preset=imagenet_wide --batch_size=384 --decay_steps=6672 --train_steps=466667 "
    "--data_dir=/shared/tfds --run_dir=/shared/runs/wide --write=job.yaml": "",
    "python -m launch.plot --run_dir=docs/runs/paper --beside=docs/runs/paper_bn,docs/runs/paper_muon "
    '--names="as printed,batch-normalised,Muon" --level="6.38% as the paper prints it, on the original images"': "",
    "python -m launch.plot --run_dir=docs/runs/near_identity_paper "
    "--beside=docs/runs/near_identity_paper_bn,docs/runs/near_identity_paper_muon "
    '--names="SGD as printed,batch-normalised,Muon with weight decay"': "",
    "python -m launch.train --preset=cifar10_wide --mixed_precision --data_dir=data --run_dir=runs/wide_seed0": _TINY,
    "python -m launch.train --preset=cifar10_wide --use_batch_norm --residual_initializer=standard "
    "--learning_rate=0.03 --mixed_precision --data_dir=data --run_dir=runs/wide_bn_seed0": _TINY,
    "python -m launch.train --npz=digits.npz --batch_size=64 --train_steps=5600 --schedule=cosine --warmup_steps=100 "
    "--eval_every=1400 --checkpoint_every=200 --run_dir=runs/digits": f"{_TINY} --warmup_steps=1",
    'np.savez("cifar10_jpeg.npz", **arrays)': {},
    "python -m launch.ablations --preset=mnist --sweep learning_rate=0.01,0.03,0.1 --seeds=3 --run_dir=runs/lr": (
        f"{_FIRST} --seeds=1"
    ),
    "python -m launch.relu_search --trials=1000 --run_dir=runs/relu": "--trials=1",
    "python -m launch.relu_search --run_dir=runs/relu": "--trials=1",
    "python -m launch.check_theory --claim=li.no_more_difficult": "",
    "python -m launch.check_theory --claim=hm.theorem_2.1": "",
    "python -m launch.check_theory --draw=identity_ball,memorized_plane,spectra --run_dir=runs/lecture": "",
    "python -m launch.shortcut_study --preset=smoke --run_dir=runs/fig5": "--examples=20 --depths=6 --num_runs=1",
    "python -m launch.plot --run_dir=runs/fig5": "",
    "python -m launch.story --run_dir=docs/figures": "",
    "python -m launch.plot --run_dir=runs/first --beside=runs/second,runs/third": "",
    "python -m theory.claims > docs/reference/claims.md": "",
    "python -m tests.measured_runs > docs/appendix/tables.md": "",
}

_README = "tests/test_readme.py::test_the_start_commands_work_in_a_fresh_clone"
_SNIPPET = "tests/test_readme.py::test_a_snippet_of_the_readme_prints_what_stands_below_it"
_PHOTOS = "tests/launch/test_images.py::test_the_guides_commands_train_on_a_folder_from_shipped_weights"
_BENCHMARK = "tests/benchmarks/test_benchmarks.py::test_a_benchmark_prints_its_table"
_SUITE = ".ci/run"

RUN_ELSEWHERE: dict[str, str] = {
    "python3 -m venv .venv && . .venv/bin/activate && pip install -e . && "
    "python -m launch.shortcut_study --preset=smoke --run_dir=runs/study": _README,
    "python3 -m venv .venv && . .venv/bin/activate && pip install -e . && "
    "python -m launch.train --run_dir=runs/first": _README,
    "python -m launch.evaluate --saved_model=runs/first/saved_model": _README,
    'print(round(train(PRESETS["mnist"], "runs/first")["test_top1_error"], 3))': _README,
    (
        "print(f\"bound: {norm_bound(R, 20, 'paper'):.3f}, sharper: {norm_bound(R, 20):.3f}, "
        'largest ‖A_i‖: {norm:.3f}")'
    ): _SNIPPET,
    'print(curvature.spectrum(load("digits"), mnist_sample().train_images[:100], mnist_sample().train_labels[:100]))': (
        _SNIPPET
    ),
    "python -m launch.train --preset=cifar10_fast --images=photos --test_share=0.2 --image_size=32 --norandom_flip "
    "--init_from=cifar10_fast --freeze=stem,stage1 --batch_size=32 --train_steps=40 --eval_every=20 "
    "--run_dir=runs/tuned": _PHOTOS,
    "python -m launch.evaluate --saved_model=runs/tuned": _PHOTOS,
    "python -m launch.classify --saved_model=runs/tuned photos/one": _PHOTOS,
    "python -m launch.train --config=runs/tuned/config.json --learning_rate=0.01 --run_dir=runs/slower": _PHOTOS,
    'print(train(config, "runs/python", init_from="cifar10_fast")["test_top1_error"])': (
        "tests/launch/test_images.py::test_the_guides_lines_of_python_fine_tune_on_a_folder"
    ),
    'print(serve(images=images)["probabilities"].numpy().round(3))': (
        "tests/identity_matters/test_exports.py::test_the_saved_model_answers_with_probabilities"
    ),
    'open("digits.tflite", "wb").write(converted)': (
        "tests/identity_matters/test_exports.py::test_tflite_answers_as_the_saved_model"
    ),
    'network.export("digits.onnx", format="onnx", verbose=False)': (
        "tests/identity_matters/test_exports.py::test_onnx_answers_as_the_saved_model"
    ),
    "python -m launch.cluster --num_workers=2 --preset=mnist --run_dir=runs/pair": (
        "tests/launch/test_faults.py::test_two_workers_end_as_one"
    ),
    "python -m launch.cluster --strategy=parameter_server --num_workers=2 --num_servers=1 --preset=mnist "
    "--run_dir=runs/async": "tests/identity_matters/test_parameter_server.py::test_two_workers_apply_every_update",
    "KERAS_BACKEND=jax python -m launch.train --run_dir=runs/jax": (
        "tests/identity_matters/test_jax.py::test_the_launcher_trains_from_an_npz_file_on_jax_without_tensorflow"
    ),
    **{
        f"python -m benchmarks.{name}": _BENCHMARK
        for name in ("hessian input_stream lanczos scaling train_step".split())
    },
    "python -m tests.attack --minutes=30": "tests/attack/test_attack.py::test_two_tries_of_each_kind",
    "python -m tests.mutation_sweep": "tests/test_mutation_sweep.py::test_a_sweep_reports_what_no_test_notices",
    "mkdocs build --strict": "tests/test_site.py::test_every_link_of_a_built_page_leads_somewhere",
    "pip install -e '.[docs]' && mkdocs build --strict": _SUITE,
    "python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[test]' && python -m pytest": _SUITE,
    "python -m pytest -m slow": _SUITE,
    "python -m pytest tests/shortcut_study/test_dynamics.py -k singular": _SUITE,
    "python -m pytest -n 0 tests/theory/test_mutations.py -k hm.theorem_2.1": _SUITE,
    "python -m pytest -n 0 -m slow tests/launch/test_slurm.py": _SUITE,
    "rows = list(near_identity.measure(network, images, labels))": (
        "tests/identity_matters/test_near_identity.py::test_measures_of_a_block_that_is_known"
    ),
    'check("hm.theorem_2.1")': "tests/theory/test_claims.py::test_every_claim_holds_as_the_table_says",
}
RUN_PAGES = {"start/tour.md": "tests/test_tour.py::test_every_cell_of_the_tour_runs"}  # their snippets

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
    lines = block.rstrip().splitlines()
    if is_python(block):
        return [Command(lines[-1], 1, len(lines))]
    return [command for command in _joined(lines) if _PROGRAM.match(command.text)]


def is_python(block: str) -> bool:
    """Returns whether a block is Python that imports or calls something; numbers and words alone parse too."""
    try:
        nodes = list(ast.walk(ast.parse(block)))
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom | ast.Call) for node in nodes)


def _joined(lines: list[str]) -> Iterator[Command]:
    text, first = "", 1
    for number, line in enumerate(lines, 1):
        text += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield Command(" ".join(text.partition("  #")[0].removeprefix("$ ").split()), first, number)
            text, first = "", number + 1


def has_run(command: str) -> bool:
    """Returns whether the tests run a command, or one that begins with it, or a snippet with this last line."""
    return any(known == command or known.startswith(f"{command} ") for known in (*RUN_HERE, *RUN_ELSEWHERE))


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
    commands = commands_in(block)
    left = [command for command in commands if not has_run(command.text)]
    if not left or (uri in RUN_PAGES and is_python(block)):
        return ""
    if len(left) == len(commands):
        return MARK
    return f"{MARK}: {_places([line for c in left for line in range(c.first, c.last + 1)])}"


def _places(lines: list[int]) -> str:
    """Returns "line 1", "lines 6–8" or "lines 1, 6–8"."""
    starts = [line for line in lines if line - 1 not in lines]
    ends = [line for line in lines if line + 1 not in lines]
    ranges = [f"{start}–{end}" if end > start else f"{start}" for start, end in zip(starts, ends)]
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(ranges)}"


def _needs_mark(command: str) -> bool:
    """Returns whether code in a line is a command that no test runs; with words such as NAME in it, it is a pattern."""
    return bool(_PROGRAM.match(command)) and not re.search(r"\b[A-Z]{2,}\b(?![_=])", command) and not has_run(command)
