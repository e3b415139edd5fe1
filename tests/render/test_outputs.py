"""Where outputs go on a node of several."""

from ddp_doctor.render.outputs import Outputs


def test_a_path_may_hold_the_host_and_the_node_rank():
    outputs = Outputs(json="out-%h-%n.json", env_file="%n.env", record="-", quiet=True, svg="%h.svg")

    assert outputs.at_node("node7", 3) == Outputs(
        "out-node7-3.json", "3.env", "-", quiet=True, svg="node7.svg"
    )
    assert Outputs().at_node("node7", 3) == Outputs()


def test_a_node_that_is_not_the_head_writes_nothing_and_shows_its_words_on_stdout(capsys):
    outputs = Outputs(json="-", record="x", quiet=True).without_files()

    print("words", file=outputs.words_to)
    assert outputs == Outputs(quiet=True)
    assert capsys.readouterr().out == "words\n"
