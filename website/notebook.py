"""A notebook as Markdown: its text, its code and the outputs that it was saved with."""

import base64
import json
from collections.abc import Iterator


def as_markdown(notebook: str, name: str) -> tuple[str, dict[str, bytes]]:
    """Returns the page of a notebook and its pictures by file name.

    Args:
      notebook: The JSON of an .ipynb file.
      name: The file's name without .ipynb; pictures are named after it.
    """
    parts, pictures = [], {}
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source:
            parts.append(f"```python\n{source}\n```")
        for text, picture in _outputs(cell.get("outputs", [])):
            if picture:
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = picture
                text = f"![Figure drawn by the code above]({file})"
            parts.append(text)
    download = f"[Download this page as a notebook]({name}.ipynb){{ download }}\n"
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n{download}\n{rest}\n", pictures


def _outputs(outputs: list[dict]) -> Iterator[tuple[str, bytes | None]]:
    """Yields (Markdown, None) of a text, all pieces of a stream in one, and ("", PNG) of a picture."""
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    if printed:
        yield f"```text\n{printed.rstrip()}\n```", None
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            yield "", base64.b64decode("".join(data["image/png"]))
        elif "text/plain" in data:
            yield "```text\n" + "".join(data["text/plain"]) + "\n```", None
