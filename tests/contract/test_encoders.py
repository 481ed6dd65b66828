"""What an encoder's checkpoint gives, on every device that takes one: what each text alone gives."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from builders.checkpoints import as_sentence_encoder, write_checkpoint  # noqa: E402
from contract.conftest import fake_accelerator  # noqa: E402
from ge_backend.device.base import GraphSource, open_device  # noqa: E402
from ge_backend.errors import DeviceUnavailable, GraphFailed  # noqa: E402

# id -> (device, or what opens it, engine, the library it needs)
DEVICES = {
    "cpu-torch": ("cpu", "transformers", "torch"),
    "cpu-openvino": ("cpu", "openvino", "openvino"),
    "fake": (fake_accelerator, "transformers", "torch"),
    "cuda": ("cuda", "transformers", "torch"),
}
MARKS = {"cuda": pytest.mark.cuda}
LENGTHS = 3, 30, 1, 0, 17, 30, 8
NEAR = {"origin": 1e-5, "bf16": 0.05}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return as_sentence_encoder(write_checkpoint(tmp_path_factory.mktemp("encoder")))


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in DEVICES])
def load(request, folder):
    """Return what opens the folder in a precision, and closes it in the end."""
    name, engine, library = DEVICES[request.param]
    pytest.importorskip(library)
    try:
        device = open_device(name) if isinstance(name, str) else name()
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    opened = []

    def loaded(precision="origin"):
        path = folder / "config.json"
        source = GraphSource.of(path, precision=precision, engine=engine, threads=1)
        opened.append(device.load(source))
        return opened[-1]

    yield loaded
    for graph in opened:
        graph.close()
    device.close()


def unequal():
    """Rows of these lengths; what is masked is garbage."""
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    ids = np.random.default_rng(2).integers(3, 200, mask.shape)
    return {"input_ids": np.where(mask, ids, 10**9), "attention_mask": mask}


def typed():
    """The same with types of tokens, as a pair of texts has them."""
    given = unequal()
    return given | {"token_type_ids": np.where(given["attention_mask"], given["input_ids"] % 2, 9)}


def alone(folder, inputs):
    """What transformers makes of each row by itself: its mean, to unit length."""
    model = transformers.BertModel.from_pretrained(folder).eval()
    means = []
    rows = torch.from_numpy(inputs["input_ids"])
    types = torch.from_numpy(inputs.get("token_type_ids", np.zeros_like(inputs["input_ids"])))
    with torch.inference_mode():
        for ids, own, count in zip(rows, types, LENGTHS, strict=True):
            told = {"input_ids": ids[None, :count], "token_type_ids": own[None, :count]}
            hidden = model(**told).last_hidden_state if count else None
            means.append(
                torch.zeros(model.config.hidden_size) if hidden is None else hidden[0].mean(0)
            )
    return torch.nn.functional.normalize(torch.stack(means), dim=1).numpy()


@pytest.mark.parametrize("precision", NEAR)
def test_each_row_is_as_it_is_alone(load, folder, precision):
    """Whatever lies beside it; types that are not sent are 0, and so is a row without tokens."""
    graph = load(precision)
    for inputs in (unequal(), typed()) * 2:
        (found,) = graph.run(inputs, {}, exclusive=False).values()
        np.testing.assert_allclose(found, alone(folder, inputs), atol=NEAR[precision])


def test_a_token_outside_of_the_vocabulary_fails_its_run_alone(load, folder):
    """The next one is right: nothing was read where nothing is."""
    graph = load()
    wrong = unequal()
    wrong["input_ids"][1, 2] = 200
    with pytest.raises(GraphFailed, match="index out of range"):
        graph.run(wrong, {}, exclusive=False)
    (found,) = graph.run(unequal(), {}, exclusive=False).values()
    np.testing.assert_allclose(found, alone(folder, unequal()), atol=NEAR["origin"])
