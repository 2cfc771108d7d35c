"""What must be in the sdist and in the wheel, and what must not: `inspect_packages.py TREE FOLDER_OF_BOTH`."""

import sys
import tarfile
import zipfile
from pathlib import Path

FOLDERS = ("adapters", "bench", "commands", "faults", "golden", "properties", "reference", "spec")
BESIDE = ("tests", "examples", "docs", ".ci")
ALONE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "conftest.py", "MANIFEST.in")


def files(tree, folders):
    """Every file below these folders."""
    found = [path for folder in folders for path in (tree / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(tree)) for path in found if "__pycache__" not in path.parts}


def main(tree, packages):
    """Fail, with the names, where something is missing or too much."""
    package = {f"decoderspec/{name}" for name in files(tree, FOLDERS)} | {"decoderspec/__init__.py"}
    package |= {"decoderspec/py.typed"}
    with zipfile.ZipFile(next(packages.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(next(packages.glob("*.tar.gz"))) as sdist:
        members = [member for member in sdist.getmembers() if not member.isdir()]
    source = {member.name.partition("/")[2] for member in members}
    wanted = {f"src/{name}" for name in package} | files(tree, BESIDE) | set(ALONE)
    problems = [f"the wheel lacks {name}" for name in sorted(package - inside)]
    problems += [f"the wheel has {name}, which the tree has not" for name in sorted(inside - package)]
    problems += [f"the sdist lacks {name}" for name in sorted(wanted - source)]
    problems += [f"the sdist has the link {member.name}" for member in members if not member.isfile()]
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"the wheel has {len(inside)} files, the sdist {len(source)}: those of the tree")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
