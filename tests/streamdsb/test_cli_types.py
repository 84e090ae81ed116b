"""Option values that are refused before any work begins."""

import pytest
from click.testing import CliRunner

from streamdsb.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "pipeline", "--json"],
        ["bench", "links", "--json"],
        ["bench", "service", "--plot"],
        ["request", "J.npy", "--spins"],
        ["report", "run", "--output"],
        ["plan", "run.yaml", "--receivers", "2", "--plot"],
    ],
)
def test_an_output_in_a_folder_that_is_not_there(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, [*arguments, "/nowhere/at/all.png"])
    assert result.exit_code == 2
    assert f"'{arguments[-1]}'" in result.output
    assert "there is no folder /nowhere/at" in result.output


@pytest.mark.parametrize("value", ["nan", "0", "-1", "1e9"])
def test_timeouts_that_are_none(value: str) -> None:
    result = CliRunner().invoke(main, ["request", "J.npy", "--timeout", value])
    assert result.exit_code == 2
    assert "'--timeout'" in result.output
    assert "is not in the range 0.001<=x<=86400" in result.output or "nan is not in" in result.output
