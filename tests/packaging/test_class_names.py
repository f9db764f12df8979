import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "fractile"


def test_no_two_public_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(SOURCE)))
    assert len(places) > 400
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_folder_holds_more_than_25_modules() -> None:
    folders = {file.parent for file in SOURCE.rglob("*.py")}
    sizes = {folder: sum(file.name != "__init__.py" for file in folder.glob("*.py")) for folder in folders}
    assert {str(folder.relative_to(SOURCE)): size for folder, size in sizes.items() if size > 25} == {}
