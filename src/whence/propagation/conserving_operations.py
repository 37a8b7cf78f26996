"""Which operations of autograd's graph conserve relevance, value x gradient, from their output to their inputs."""

from __future__ import annotations

from torch.autograd.graph import Node

_BY_RULE = ("_Through", "_Scaled")  # the autograd functions by which backward rules change a gradient
# homogeneous operations, y(a x) = a y(x) in all inputs together, conserve: y * dy is the sum of x * dx
_HOMOGENEOUS = {
    "Abs", "AccumulateGrad", "Add", "Alias", "Amax", "Amin", "AsStrided", "AvgPool2D", "Cat", "Clone", "ConstantPadNd",
    "CopySlices", "Cumsum", "Diagonal", "Dropout", "Embedding", "Expand", "Flip", "Gather", "Index", "IndexAdd",
    "IndexPut", "IndexSelect", "LeakyRelu", "LinalgVectorNorm", "MaskedFill", "MaskedScatter", "Max",
    "MaxPool2DWithIndices", "Maximum", "Mean", "Min", "Minimum", "NativeDropout", "Neg", "Permute", "Prelu", "Relu",
    "Repeat", "ReshapeAlias", "Roll", "Rsub", "Scatter", "ScatterAdd", "Select", "Slice", "Split", "SplitWithSizes",
    "Squeeze", "Stack", "Sub", "Sum", "T", "Threshold", "ToCopy", "Topk", "Transpose", "Unbind", "Unfold",
    "UnsafeSplit", "UnsafeView", "Unsqueeze", "UpsampleBicubic2D", "UpsampleBilinear2D", "View", "Where",
    *_BY_RULE,
}  # fmt: skip
_VIEWS = {
    "Clone", "Expand", "Permute", "ReshapeAlias", "Squeeze", "T", "ToCopy", "Transpose", "UnsafeView", "Unsqueeze",
    "View",
}  # fmt: skip
# products, and which of their inputs are factors
_FACTORS = {
    "Mul": (0, 1), "Mm": (0, 1), "Bmm": (0, 1), "Mv": (0, 1), "Dot": (0, 1), "Addmm": (1, 2), "Baddbmm": (1, 2),
    "GroupedMm": (0, 1), "Convolution": (0, 1),
}  # fmt: skip
_SPELLED = {"NativeLayerNorm": "layer_norm", "Bmm": "matmul", "Mm": "matmul", "Addmm": "matmul", "Baddbmm": "matmul"}


def _short(node: Node) -> str:
    """The bare name of an operation: AccumulateGrad of `torch::autograd::AccumulateGrad`, Sin of `SinBackward0`."""
    return node.name().rpartition("::")[2].partition("Backward")[0]


def leaks(node: Node) -> bool:
    """Whether the operation gives its inputs more or less relevance than its output has."""
    name = _short(node)
    following = [step for step, _ in node.next_functions]
    if name in _FACTORS:
        factors = [following[place] for place in _FACTORS[name]]
        return None not in factors and not all(map(_halved, factors))
    if name == "Div":
        return len(following) > 1 and following[1] is not None
    return name not in _HOMOGENEOUS


def _halved(node: Node | None) -> bool:
    """Whether a rule gives this factor of a product half of the relevance."""
    while node is not None and _short(node) in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and _short(node) in _BY_RULE


def operation_name(node: Node) -> str:
    """The operation's name as users write it: scaled_dot_product_attention, softmax, layer_norm."""
    name = _short(node)
    if name.startswith("ScaledDotProduct"):
        return "scaled_dot_product_attention"
    spelled = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    return _SPELLED.get(name, spelled)
