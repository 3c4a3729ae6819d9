"""The words of labels, headings and printed lines that output tests look for: a rewording changes this file alone.

In a pattern {} stands for a number that the test computes.
"""

TRAIN = {
    "line": r"step +(\d+)  loss ([\d.]+)  train error ([\d.]+)%  {split} error ([\d.]+)%  (\d+) images/s",
    "done": r"done: step (\d+), {split} error ([\d.]+)%, top-5 ([\d.]+)%",
    "test": "test",
    "held-out": "held-out",
}
