"""One request as the planner sees it: rows, sizes of its ragged axes, and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ge_backend.errors import InvalidRequest
from ge_backend.model.layout.layout import InputLayout, Layout, RequestShape
from ge_backend.serving.batching.device_tensor import DeviceTensor
from ge_backend.tensors import Array, Shape

__all__ = ["REMEMBERED_SHAPES", "Request", "check_request", "never", "stacked"]

Tensor = Array | DeviceTensor
NOTHING_ON_DEVICE: Mapping[str, DeviceTensor] = MappingProxyType({})
# Shapes of requests that are remembered per layout; beyond that the memory starts afresh.
REMEMBERED_SHAPES = 4096


def never() -> bool:
    """Say that no client has given up."""
    return False


@dataclass(slots=True)
class Request:
    """A request that fits the model.

    It is not changed once a batch has begun, and not frozen: each would cost 2 us more then. Made
    with arguments by position it takes a quarter of the time that it takes with them by name.

    Attributes:
        index: its place in the host's list.
        rows: its own batch size, at least 1; 1 for a model without a batch dimension.
        tensors: what the client sent, by input name; `[rows, *dims]` where the model is batched.
        sizes: the real size of each padded axis, in the layout's order.
        equal_sizes: the sizes of the free axes that are not padded, in the layout's order; -1 where
            only an optional input that was not sent has it.
        omitted: optional inputs that were not sent and that the graph runs without.
        deadline_ns: CLOCK_MONOTONIC; 0 is no deadline.
        cancelled: asks the host whether the client has given up on it, which takes 10-25 us.
        on_device: inputs that are on the device already; they are not among the tensors.
        wanted: the outputs that the client asked for; empty: all.
        common: the values of inputs that a run has only one of.
        slot: where the state of its sequence lies; -1 for a model without states.
        starting: the state starts with its initial value.
        states: the shape of each state as it is now, where its size varies.
        members: the requests of one row each that this one stands for; see `stacked`. What differs
            between them it has of the first one.
    """

    index: int
    rows: int
    tensors: Mapping[str, Array]
    sizes: Shape
    equal_sizes: Shape = ()
    omitted: tuple[str, ...] = ()
    deadline_ns: int = 0
    cancelled: Callable[[], bool] = never
    on_device: Mapping[str, DeviceTensor] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    common: tuple[object, ...] = ()
    slot: int = -1
    starting: bool = False
    states: tuple[Shape, ...] = ()
    members: Sequence[Request] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What requests of one sub-batch have in common: sizes, states, inputs left out, values."""
        return (self.equal_sizes, self.omitted, self.states, self.common)

    def each(self, first: int, count: int) -> Sequence[Request]:
        """Return whose rows these are: members, or the request itself."""
        return self.members[first : first + count] or (self,)


def stacked(requests: Sequence[Request]) -> list[Request]:
    """Return neighbours of one row each that are alike as one request of all their rows.

    What is done per request is done once for them then. None has inputs on the device.
    """
    stacks: list[list[Request]] = []
    former = None
    for request in requests:
        kind = (request.sizes, request.key, request.wanted) if request.rows == 1 else None
        if kind is not None and kind == former:
            stacks[-1].append(request)
        else:
            stacks.append([request])
        former = kind
    return [
        replace(members[0], rows=len(members), members=members) if len(members) > 1 else members[0]
        for members in stacks
    ]


def check_request(  # noqa: PLR0913 - what the host says of a request
    index: int,
    tensors: Mapping[str, Array],
    layout: Layout,
    *,
    deadline_ns: int = 0,
    cancelled: Callable[[], bool] = never,
    on_device: Mapping[str, DeviceTensor] = NOTHING_ON_DEVICE,
    wanted: frozenset[str] = frozenset(),
) -> Request:
    """Return the request, its shapes checked against the layout; contents are not read.

    Raises:
        InvalidRequest: an input is missing, has a wrong dtype or shape, is longer than the graph
            takes, or disagrees with another input about the batch or an axis that they share.
    """
    key = tuple([(name, array.dtype, array.shape) for name, array in tensors.items()])
    if on_device:
        key += tuple([(name, each.dtype, each.shape) for name, each in on_device.items()])
    shape = layout.checked.get(key)
    if shape is None:
        shape = _checked(tensors, on_device, layout)
        if len(layout.checked) >= REMEMBERED_SHAPES:
            layout.checked.clear()
        layout.checked[key] = shape
    return Request(
        index,
        shape.rows,
        tensors,
        shape.sizes,
        shape.equal_sizes,
        shape.omitted,
        deadline_ns,
        cancelled,
        on_device,
        wanted,
        _common(shape.common, tensors) if shape.common else (),
    )


def _checked(
    tensors: Mapping[str, Array], on_device: Mapping[str, DeviceTensor], layout: Layout
) -> RequestShape:
    """Return what a request with these tensors is; as `check_request`."""
    rows, first = -1, ""
    sizes = [-1] * (len(layout.axes) + len(layout.equal_axes))
    sources = [""] * len(sizes)
    unsent: list[InputLayout] = []
    common: list[InputLayout] = []
    for item in layout.inputs:
        array: Tensor | None = tensors.get(item.name)
        if array is None:
            array = on_device.get(item.name)
        if array is None:
            unsent.append(item)
        else:
            rows = _rows(item, array, rows, first, layout)
            first = first or item.name
            _measure(item, array, sizes, sources, layout)
            if item.common is not None and layout.batched:
                common.append(item)
    omitted = tuple([item.name for item in unsent if _omitted(item, sizes, layout)])
    if rows < 0:
        raise InvalidRequest("the request has no input that tells its batch size; send one")
    padded = len(layout.axes)
    if -1 in sizes[:padded]:
        raise _unknown(layout.axes[sizes.index(-1)])
    return RequestShape(
        rows=rows,
        sizes=tuple(sizes[:padded]),
        equal_sizes=tuple(sizes[padded:]),
        omitted=omitted,
        common=tuple(common),
    )


def _common(inputs: Sequence[InputLayout], tensors: Mapping[str, Array]) -> tuple[object, ...]:
    """Return the values of inputs that a run has only one of."""
    return tuple([(item.name, _one_value(item, tensors[item.name])) for item in inputs])


def _one_value(item: InputLayout, array: Array) -> object:
    """Return what all rows of an input hold that a run has one of."""
    rows = array.reshape(len(array), -1).tolist()
    if any(row != rows[0] for row in rows):
        raise InvalidRequest(
            f"input {item.name!r} differs between the rows of this request, and the model has one "
            "for all; send rows that differ in it as requests of their own"
        )
    return tuple(rows[0])


def _omitted(item: InputLayout, sizes: list[int], layout: Layout) -> bool:
    """Whether the graph runs without an input that was not sent; False if it will be made.

    Raises:
        InvalidRequest: it can be neither made nor left out.
    """
    if not item.made:
        if item.optional:
            return True
        raise InvalidRequest(f"input {item.name!r} is missing; the model needs it")
    for axis in item.axes:
        if axis >= 0 and sizes[axis] < 0:
            raise _unknown((*layout.axes, *layout.equal_axes)[axis])
    return False


def _measure(
    item: InputLayout, array: Tensor, sizes: list[int], sources: list[str], layout: Layout
) -> None:
    """Take the sizes of the free axes from one input, and see that they agree with the others'.

    `sources`: which input each was read from.
    """
    shape = array.shape[1:] if layout.batched else array.shape
    for axis, dim, size in zip(item.axes, item.dims, shape, strict=True):
        if axis >= 0:
            if sizes[axis] not in (-1, size):
                raise InvalidRequest(
                    f"axis {(*layout.axes, *layout.equal_axes)[axis]!r} is {size} in input "
                    f"{item.name!r} and {sizes[axis]} in another input of the same request, "
                    f"{sources[axis]!r}; make them equal"
                )
            name = (*layout.axes, *layout.equal_axes)[axis]
            if size > layout.limits.get(name, size):
                raise InvalidRequest(
                    f"axis {name!r} of {item.name!r} is {size} long; the model takes at most "
                    f"{layout.limits[name]}"
                )
            if axis >= len(layout.axes) and size < layout.least.get(name, 0):
                raise InvalidRequest(
                    f"axis {name!r} of {item.name!r} is {size} long; the model takes at least "
                    f"{layout.least[name]}"
                )
            sizes[axis], sources[axis] = size, item.name
        elif dim not in (-1, size):
            raise InvalidRequest(
                f"input {item.name!r} has shape {list(array.shape)}; expected "
                f"{_expected(item, layout)}"
            )


def _rows(item: InputLayout, array: Tensor, rows: int, first: str, layout: Layout) -> int:
    """Return the request's rows after looking at one more input; `first` has told them."""
    if array.dtype != item.dtype.numpy:
        raise InvalidRequest(
            f"input {item.name!r} is {array.dtype}; expected {item.dtype.name} ({item.dtype.numpy})"
        )
    if array.ndim != len(item.dims) + layout.batched:
        raise InvalidRequest(
            f"input {item.name!r} has shape {list(array.shape)}; expected {_expected(item, layout)}"
        )
    if not layout.batched:
        return 1
    own = int(array.shape[0])
    if own == 0:
        raise InvalidRequest(f"input {item.name!r} has batch 0; send at least one row")
    if rows not in (-1, own):
        raise InvalidRequest(
            f"input {item.name!r} has batch {own}, another input has {rows}: {first!r}; "
            "all inputs of a request need one batch size"
        )
    return own


def _expected(item: InputLayout, layout: Layout) -> str:
    names = [name if dim < 0 else str(dim) for dim, name in zip(item.dims, item.names, strict=True)]
    return f"[{', '.join(['batch', *names] if layout.batched else names)}]"


def _unknown(axis: str) -> InvalidRequest:
    return InvalidRequest(f"no input tells the size of axis {axis!r}; send one that has it")
