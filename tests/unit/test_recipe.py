"""Recipes by name: what each allows, and what is said of one that does not exist."""

from __future__ import annotations

import pytest

from yellowsound.recipe import RECIPES, Recipe, find_recipe
from yellowsound.request import RequestError


def test_the_default_allows_nothing_and_names_match() -> None:
    assert find_recipe("exact") == Recipe() and Recipe().level == "exact"
    assert find_recipe("trimmed").trim_text and find_recipe("trimmed").level == "reordered"
    assert all(name == recipe.name for name, recipe in RECIPES.items())


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"recipe=.*fast.*is not known; known: exact, trimmed"):
        find_recipe("fast")
