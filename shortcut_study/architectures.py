"""The architectures that Li et al. compare, and the positions of their ReLUs (appendix B)."""

from typing import NamedTuple

from shortcut_study.network import ShortcutNetwork

LINEAR, RELU_MID = "linear", "relu_mid"  # the values of the column `activations`


class Architecture(NamedTuple):
    """The number of matrices that the shortcuts of a network pass (0: none), and its initialisation."""

    shortcut_depth: int
    initialisation: str

    def has_depth(self, depth: int, activations: str) -> bool:
        """Returns whether there is such a network of `depth` weight matrices."""
        return depth % self.unit_depth(activations) == 0

    def unit_depth(self, activations: str) -> int:
        """Returns the matrices of a unit; a plain network has the ReLUs of a 2-shortcut network."""
        return self.shortcut_depth or (1 if activations == LINEAR else 2)

    def network(self, width: int, depth: int, activations: str) -> ShortcutNetwork:
        """Returns the network of `depth` weight matrices; raises ValueError if its units do not divide them."""
        mid = "linear" if activations == LINEAR else "relu"
        return ShortcutNetwork.with_depth(width, depth, self.unit_depth(activations), mid, self.shortcut_depth > 0)


XAVIER, ORTHOGONAL = Architecture(0, "xavier"), Architecture(0, "orthogonal")
ONE, TWO, THREE = (Architecture(n, "zero") for n in (1, 2, 3))
ARCHITECTURES = {
    LINEAR: (XAVIER, ORTHOGONAL, ONE, TWO, THREE),
    # With ReLUs at mid only these have the same number of them (Li et al. §5.3).
    RELU_MID: (XAVIER, ORTHOGONAL, TWO),
}
LABELS = {
    XAVIER: "Xavier, no shortcuts",
    ORTHOGONAL: "orthogonal, no shortcuts",
    ONE: "1-shortcut",
    TWO: "2-shortcut",
    THREE: "3-shortcut",
}
