"""The tensors by which a model says what it is."""

from ge_backend.model.config.described import graph_blocks, is_described, with_description

TEXT = {"name": "text", "data_type": "TYPE_STRING", "dims": [1]}
IDS = {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]}
ASKS = {"name": "description", "data_type": "TYPE_STRING", "dims": [1], "optional": True}
SAYS = {"name": "description", "data_type": "TYPE_STRING", "dims": [1]}


def test_a_graph_sees_none_of_them():
    """They are put beside its own, and taken from them again."""
    given = {"name": "m", "input": [TEXT], "output": [IDS]}
    whole = with_description(given)
    assert whole == {"name": "m", "input": [TEXT, ASKS], "output": [IDS, SAYS]}
    assert (is_described(given), is_described(whole)) == (False, True)
    assert graph_blocks(whole) == graph_blocks(given) == ([TEXT], [IDS])


def test_a_graphs_own_tensor_of_the_name_stays():
    """It has to be sent, or is no text."""
    for own in (SAYS, {**ASKS, "data_type": "TYPE_INT64"}):
        given = {"input": [own], "output": [IDS]}
        assert with_description(given) == given
        assert graph_blocks(given) == ([own], [IDS])
        assert not is_described(given)
    given = {"input": [TEXT], "output": [SAYS]}
    assert with_description(given) == given
    assert graph_blocks(given) == ([TEXT], [SAYS])
