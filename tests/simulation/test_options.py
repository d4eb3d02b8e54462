"""What `tipbench policies simulate` draws is decided by its seed and by how much a profile says."""

from typing import Any

from tests.conftest import Cli


def test_the_seed_and_the_profile_effect_are_what_was_asked_for(cli: Cli, experiment_name: str) -> None:
    small = ("--policies", "egreedy-v1", "--users", "8", "--rounds", "10", "--experiment", experiment_name)

    def simulate(*more: str) -> Any:
        return cli.ok("policies", "simulate", *small, "--json", *more).json()

    plain, again, other = simulate("--seed", "3"), simulate("--seed", "3"), simulate("--seed", "4")
    planted = simulate("--seed", "3", "--profile-effect", "2")
    assert plain == again
    assert [told["seed"] for told in (plain, other)] == [3, 4]
    assert plain["policies"] != other["policies"]
    assert [told["profile_effect"] for told in (plain, planted)] == [0.0, 2.0]
    assert plain["policies"] != planted["policies"]
