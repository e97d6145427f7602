"""What the documentation says is there, is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.commands.cli import cli
from engine.core.plan.profile import all_keys
from engine.core.plan.profile_reading import parse_profile
from engine.planning.profiles import read_profile

ROOT = Path(__file__).resolve().parents[2]
PROFILES = (ROOT / "docs" / "profiles.md").read_text()


@pytest.mark.parametrize("key", [".".join(path) for path in all_keys()])
def test_every_key_of_a_profile_is_documented(key: str) -> None:
    assert f"| `{key}` |" in PROFILES


def test_no_key_is_documented_that_does_not_exist() -> None:
    keys = {".".join(path) for path in all_keys()}
    assert set(re.findall(r"^\| `([\w.]+)` \|", PROFILES, re.MULTILINE)) == keys


@pytest.mark.parametrize("document", ["README.md", "docs/profiles.md", "docs/training.md"])
def test_every_profile_in_the_documents_is_valid(document: str) -> None:
    examples = re.findall(r"```toml\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert examples
    for text in examples:
        parse_profile(text, file=document)


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_profile_is_valid_and_named_after_its_file(path: Path) -> None:
    profile = read_profile(path)
    assert profile.name == path.stem
    assert profile.description


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_every_command_is_documented(verb: str) -> None:
    assert re.search(rf"^\| `rankdeck {verb}\b", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)


def test_the_readme_links_to_every_page_for_users() -> None:
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in ROOT.glob("docs/*.md") if f"(docs/{page.name})" not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_changelog_begins_with_the_version_that_the_package_has() -> None:
    from engine import __version__

    versions = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
