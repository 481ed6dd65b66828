"""The chats of the demo: what is written for the server, and what is shown of the answers."""

from demo.chat_model import FILES
from demo.chats import Chat, chats_table, figures_line, write_chat_model
from rich.console import Console


def test_the_model_is_its_checkpoint_and_one_line(tmp_path):
    """The version folder links to the checkpoint; the configuration names the backend alone."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for name in FILES:
        (checkpoint / name).write_text(name)
    write_chat_model(tmp_path / "models", checkpoint)
    version = tmp_path / "models" / "smollm2" / "1"
    assert {path.name: path.read_text() for path in version.iterdir()} == {
        path.name: path.name for path in checkpoint.iterdir()
    }
    assert 'backend: "ge"' in (version.parent / "config.pbtxt").read_text()


def test_figures_are_of_all_chats_together():
    """Tokens of all over the time of all; the median of the first ones; the median gap."""
    chats = [
        Chat("a", 10.0, "x", [10.1, 10.2, 10.3]),
        Chat("b", 10.0, "y", [10.3, 10.4, 10.5]),
    ]
    assert figures_line(chats) == (
        "2 chats at once: 12 tokens per second, first token after 200 ms, then one every 100 ms"
    )


def test_answers_are_shown_in_one_line_each():
    """Line breaks of an answer do not break the table; brackets are no markup."""
    table = chats_table([Chat("why?", 0.0, "because\n\n[red] it is")])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    assert "because [red] it is" in capture.get()
