"""A mixture of experts computes the experts that rows choose, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgedec.export.to_onnx.graph import GraphEditor, attributes, external_tensor
from edgedec.export.to_onnx.linear_node import DOMAIN, import_domain
from edgedec.export.to_onnx.make import make_node
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.kernels.cpu import packed_nbytes
from edgedec.models.config import ModelConfig
from edgedec.models.quant import QuantFormat


def fuse_experts(
    model: ModelProto, config: ModelConfig, formats: Mapping[str, QuantFormat]
) -> None:
    """Replaces the MLPs of all experts, of which a TopK leaves some, and what stands around them.

    Before:
        h = RMSNormalization(x, g);  router = MatMul(h, Wr)
        weights f32 [E, T, 1] = Transpose(ScatterElements(..., TopK(Softmax(router))))
        a, b = MatMul(h, Wg f32 [E, K, N]), MatMul(h, Wu f32 [E, K, N])
        Add(r, ReduceSum(Mul(MatMul(Mul(Mul(a, Sigmoid(a)), b), Wd f32 [E, N, K]), weights)))
    After:
        h = RMSNormalization(x, g);  router = MatMul(h, Wr)
        Experts(x, g, r, router, Wg uint8 [E, bytes], Wu uint8 [E, bytes], Wd uint8 [E, bytes])

    Of a mixture with biases and clamped gates:

    Before:
        a, b = Min(Add(MatMul(h, Wg), Reshape(bg)), c), Clip(Add(MatMul(h, Wu), Reshape(bu)), -c, c)
        d = Add(MatMul(Mul(Mul(a, Sigmoid(Mul(a, 1.702))), Add(b, 1)), Wd), Reshape(bd))
        Add(r, ReduceSum(Mul(d, weights)))
    After:
        Experts(x, g, r, router, Wg, Wu, Wd, , bg, bu, bd, limit=c)

    Norm and residual stay where they are if others stand between; the norm's result is then x.
    """
    editor = GraphEditor(model)
    for top in editor.nodes("TopK"):
        if (mixture := _mixture(editor, top)) is not None:
            mixture.fuse(editor, config, formats)
    editor.finish()
    import_domain(model)


@dataclass(frozen=True)
class _Mixture:
    """The nodes of one mixture. products: by gate, up and down; others: the last is the sum.

    biases: by gate, up and down, if there are any.
    """

    router: str
    products: tuple[NodeProto, NodeProto, NodeProto]
    others: tuple[NodeProto, ...]
    biases: tuple[str, ...] = ()

    def fuse(
        self, editor: GraphEditor, config: ModelConfig, formats: Mapping[str, QuantFormat]
    ) -> None:
        """Puts one node in place of all; nobody reads what spread the router's scores any more."""
        x, output, old = self.products[0].input[0], self.others[-1].output[0], list(self.others)
        norm_weight, epsilon, residual = "", 0.0, ""
        if (norm := editor.producer(x, "RMSNormalization")) is not None:
            x, norm_weight = norm.input
            epsilon = attributes(norm)["epsilon"]
        if (add := editor.only_reader(output, "Add")) is not None:
            residual, output = add.input[0], add.output[0]
            old.append(add)
        names = [product.input[1] for product in self.products]
        node = make_node(
            "Experts",
            [x, norm_weight, residual, self.router, *names, *(self.biases and ("", *self.biases))],
            [output],
            name=names[0].removesuffix(".gate_proj.weight"),
            domain=DOMAIN,
            formats=[formats[name].index for name in names],
            k=config.hidden_size,
            n=editor.initializers[names[0]].dims[2],
            n_experts=config.n_experts,
            n_used=config.n_experts_used,
            normed=int(config.is_routing_normed),
            epsilon=epsilon,
            limit=config.expert_limit or None,
        )
        editor.replace([*old, *self.products], [node])
        for name in names:
            _pack(editor.initializers[name], formats[name])


def _mixture(editor: GraphEditor, top: NodeProto) -> _Mixture | None:
    """Returns the mixture whose experts ``top`` chooses, None if it is another than we compute."""
    softmax = editor.producer(top.input[0], "Softmax")
    weighted = next(_readers_behind(editor, top.output[0], "Mul"), None)
    biased = weighted and editor.producer(weighted.input[0], "Add")
    if softmax is not None and weighted is not None and biased is not None:
        return _clamped_mixture(editor, softmax.input[0], weighted, biased)
    down = weighted and editor.producer(weighted.input[0], "MatMul")
    gated = down and editor.producer(down.input[0], "Mul")
    silu = gated and editor.producer(gated.input[0], "Mul")
    if softmax is None or weighted is None or down is None or gated is None or silu is None:
        return None
    gate, up = (editor.producer(value, "MatMul") for value in (silu.input[0], gated.input[1]))
    total = editor.only_reader(weighted.output[0], "ReduceSum")
    if gate is None or up is None or total is None:
        return None
    sigmoid = editor.producer(silu.input[1], "Sigmoid")
    if sigmoid is None or sigmoid.input[0] != gate.output[0]:
        return None
    others = (sigmoid, silu, gated, weighted, total)
    return _Mixture(softmax.input[0], (gate, up, down), others)


def _clamped_mixture(
    editor: GraphEditor, router: str, weighted: NodeProto, last: NodeProto
) -> _Mixture | None:
    """Returns the mixture with biases that ends in ``weighted``, which reads the sum ``last``."""

    def made(value: str, *kinds: str) -> list[NodeProto]:
        """Returns the makers of ``value``, of that node's first input, and so on."""
        scales = []
        for kind in kinds:
            if (node := editor.producer(value, kind)) is None:
                return []
            scales.append(node)
            value = node.input[0]
        return scales

    total = editor.only_reader(weighted.output[0], "ReduceSum")
    middle = made(last.input[0], "MatMul", "Mul", "Mul")
    if total is None or not middle:
        return None
    down, gated, opened = middle
    gate = made(opened.input[0], "Min", "Add", "MatMul")
    sigmoid = made(opened.input[1], "Sigmoid", "Mul")
    up = made(gated.input[1], "Add", "Clip", "Add", "MatMul")
    if not gate or not up or not sigmoid or sigmoid[1].input[0] != gate[0].output[0]:
        return None
    rows = [editor.producer(add.input[1], "Reshape") for add in (gate[1], up[2], last)]
    reshapes = tuple(node for node in rows if node is not None)
    if len(reshapes) != len(rows):
        return None
    others = (
        *gate[:-1], *up[:-1], *sigmoid, opened, gated, last, *reshapes, weighted, total,
    )  # fmt: skip
    biases = tuple(node.input[0] for node in reshapes)
    return _Mixture(router, (gate[-1], up[-1], down), others, biases)


def _readers_behind(editor: GraphEditor, value: str, op_type: str) -> Iterator[NodeProto]:
    """Yields the nearest readers of one operator, of ``value`` or of what is made of it."""
    for reader in editor.readers(value):
        if reader.op_type == op_type:
            yield reader
        else:
            for derived in reader.output:
                yield from _readers_behind(editor, derived, op_type)


def _pack(tensor: TensorProto, fmt: QuantFormat) -> None:
    n_experts, k, n = tensor.dims
    dims = [n_experts, packed_nbytes(fmt.index, n, k)]
    tensor.CopyFrom(external_tensor(tensor.name, TensorProto.UINT8, dims))
