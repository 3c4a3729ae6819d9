"""The README as a package index shows it; all else is in setup.cfg.

An index knows no folder that a relative link could lead to. With README_BASE_URL, the address of the
repository's files (https://HOST/OWNER/REPOSITORY/raw/main), links and pictures lead there;
without it pictures and their captions are left out and links are plain text. README.md itself stays as it is.
"""

import os
import re

from setuptools import setup

RELATIVE = r"\[([^\]]*)\]\((?!https?:|#)([^)]+)\)"


def for_index(readme: str, base_url: str) -> str:
    """The README without relative links: absolute ones where there is a base_url, otherwise their text alone."""
    if base_url:
        return re.sub(RELATIVE, rf"[\1]({base_url.rstrip('/')}/\2)", readme)
    return re.sub(RELATIVE, r"\1", re.sub(rf"!{RELATIVE}\n+(\*[^*]+\*\n+)?", "", readme))


if __name__ == "__main__":
    with open("README.md", encoding="utf-8") as file:
        setup(long_description=for_index(file.read(), os.environ.get("README_BASE_URL", "")))
