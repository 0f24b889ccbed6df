"""The commit in a result is that of the library, not of the directory one happens to work in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from palimpsest.provenance import code_commit, software_versions, versions

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "f"]):
        subprocess.run([*GIT, *arguments], check=True, cwd=tmp_path)
    return package


def test_the_commit_says_whether_files_differ(repository: Path) -> None:
    commit = code_commit(repository)
    assert commit is not None and len(commit) == 40
    (repository.parent / "elsewhere").write_text("2")
    assert code_commit(repository) == commit
    (repository / "__init__.py").write_text("2")
    assert code_commit(repository) == commit + "+changes"


def test_somebody_elses_repository_is_not_reported(repository: Path) -> None:
    installed = repository / "venv" / "palimpsest"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert code_commit(installed) is None


def test_no_repository_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert code_commit(tmp_path) is None


def test_all_versions_include_those_of_the_software() -> None:
    assert software_versions().items() <= versions().items()
    assert versions()["commit"] == code_commit()
