"""What the documentation says is there, is there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from engine.core.plan.profile import all_keys
from engine.planning.profiles import read_profile
from engine.planning.recipes import recipes
from tests.support import PATIENCE, parse_profile, run_program, verbs

ROOT = Path(__file__).resolve().parents[2]
PROFILES = (ROOT / "docs" / "profiles.md").read_text()


@pytest.mark.parametrize("key", [".".join(path) for path in all_keys()])
def test_every_key_of_a_profile_is_documented(key: str) -> None:
    assert f"| `{key}` |" in PROFILES


def test_no_key_is_documented_that_does_not_exist() -> None:
    keys = {".".join(path) for path in all_keys()}
    assert set(re.findall(r"^\| `([\w.]+)` \|", PROFILES, re.MULTILINE)) == keys


@pytest.mark.parametrize(
    "document", ["README.md", "docs/profiles.md", "docs/recipes.md", "docs/training.md", "docs/tutorial.md"]
)
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


@pytest.mark.parametrize("verb", verbs())
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "engine/__init__.py"


# --- architecture.md -------------------------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = ARCHITECTURE[ARCHITECTURE.index("## Four walks") : ARCHITECTURE.index("## Where to put what")]


@pytest.mark.slow
def test_the_drawings_are_those_of_the_code() -> None:
    done = run_program([sys.executable, "docs/rooms.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", ["docs/architecture.md", "docs/diagnose.md", "CONTRIBUTING.md", "README.md"])
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"`((?:engine|tui|rankdeck|docs|tests|profiles|benchmarks)/[\w./-]*)`", text)
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("folder", ["docs", "engine", "tui"])
def test_every_module_that_a_text_names_by_its_dotted_name_exists(folder: str) -> None:
    missing = []
    for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
        for name in re.findall(r"`((?:engine|tui)(?:\.\w+)+)", path.read_text(encoding="utf-8")):
            parts = name.split(".")
            if not any(_is_module(parts[:length]) for length in range(len(parts), max(1, len(parts) - 2) - 1, -1)):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def _is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return len(parts) > 1 and (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file())


@pytest.mark.parametrize(("file", "text"), re.findall(r"^\| [^|]*\| `([\w/]+\.py)` \| (.*) \|$", WALKS, re.MULTILINE))
def test_each_row_of_the_walks_names_files_that_define_its_functions(file: str, text: str) -> None:
    here = next(path for path in (ROOT / "engine" / file, ROOT / file) if path.exists()).parent
    sources = []
    for name in [file, *re.findall(r"`([\w/]+\.py)`", text)]:
        found = [folder / name for folder in (here, here.parent, ROOT / "engine", ROOT) if (folder / name).is_file()]
        assert found, name
        sources += [path.read_text(encoding="utf-8") for path in found]
    for function in re.findall(r"`(?:\w+\.)?(\w+)\(\)`", text):
        assert any(re.search(rf"\bdef {function}\(", source) for source in sources), function


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z]\w+)`", WALKS)) - {"PATH"}))
def test_every_class_of_the_walks_exists(name: str) -> None:
    paths = [path for top in ("engine", "tui", "rankdeck") for path in (ROOT / top).rglob("*.py")]
    assert any(re.search(rf"^class {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE) for path in paths)


def test_decisions_are_numbered_without_holes() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    for name in names:
        title = (ROOT / "docs" / "decisions" / name).read_text().partition("\n")[0]
        assert title.startswith(f"# {int(name[:4])}. ")


def test_every_argument_of_every_recipe_is_documented() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for recipe in recipes().values():
        section = page.partition(f"\n## {recipe.name}\n")[2].partition("\n## ")[0]
        for argument in recipe.accepted:
            assert f"| `--{argument.name}`" in section, f"run: python docs/recipes.py ({recipe.name} --{argument.name})"


def test_the_page_about_recipes_is_current() -> None:
    done = subprocess.run([sys.executable, "docs/recipes.py", "--check"], cwd=ROOT, timeout=PATIENCE, check=False)
    assert done.returncode == 0, "run: python docs/recipes.py"


@pytest.mark.slow
def test_the_page_of_help_is_current() -> None:
    done = subprocess.run([sys.executable, "docs/help.py", "--check"], cwd=ROOT, timeout=PATIENCE, check=False)
    assert done.returncode == 0, "run: python docs/help.py"
