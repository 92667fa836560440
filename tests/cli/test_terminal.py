"""What is printed: columns of numbers stand to the right, whatever their sign."""

from __future__ import annotations

import pytest

from askew.cli.terminal import print_table


@pytest.mark.parametrize("sign", ["", "-", "−", "+"])
def test_a_column_of_numbers_is_set_to_the_right_whatever_their_signs(
    capsys: pytest.CaptureFixture[str], sign: str
) -> None:
    print_table(
        ["method", "gain"],
        [["source", "–"], ["coal", "12.5 [1.0, 20.0]"], ["mcd", f"{sign}1.5 [-3.0, 0.5]"]],
    )
    *_, source, coal, mcd = capsys.readouterr().out.splitlines()
    assert len(source) == len(coal) == len(mcd)
    assert mcd.endswith(f"  {sign}1.5 [-3.0, 0.5]")


def test_a_column_of_words_is_set_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["method", "verdict"], [["source", "–"], ["coal", "-helped"]])
    assert capsys.readouterr().out.splitlines()[-1] == " coal     -helped"
