"""Seeds of the recipes' random draws."""

from rankdeck.recipes._seeds import seed_at


def test_draws_and_neighbouring_seeds_share_nothing():
    drawn = {seed_at(seed, *numbers) for seed in range(20) for numbers in [(), (0,), (1,), (0, 1), (1, 0), (2, 3)]}
    assert len(drawn) == 20 * 6
    assert all(0 <= one < 1 << 63 for one in drawn)


def test_a_seed_is_the_same_in_every_version():
    assert seed_at(0, 1) == 5973285143095172824
