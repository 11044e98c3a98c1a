"""The tidy rules: each takes a source tree and returns its complaints; none changes a file."""

import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

Rule = Callable[[Path], list[str]]

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
FUNCTION_LINES_MEDIAN_MAX = 10
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
CODE_FOLDERS = ("src", "tests", "scripts", "benchmarks", "examples")
TEXT_FOLDERS = (*CODE_FOLDERS, "docs", ".ci")
NO_TEXT = {".pyc", ".png", ".db", ".gz"}

# Written in pieces, so that this file does not hold what it looks for.
TO_DO = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b(?P<rest>.*)")
SILENCER = re.compile(
    r"#\s*(?:(?:ruff|flake8):\s*)?(?:no" + r"qa|pyright: ig" + r"nore|type: ig" + r"nore|pragma: no (?:cover|branch))"
    r"(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*|\[[^]]*\])?(?P<reason>.*)"
)
PLACES = [
    r"/ro" + r"ot/",
    r"/wo" + r"rk/",
    r"/ho" + r"me/\w",
    r"/Us" + r"ers/\w",
    r"/tmp/br" + r"ief",
    r"py" + r"pi\.org",
    r"pythonho" + r"sted\.org",
    r"npm" + r"js\.(?:org|com)",
    r"cra" + r"tes\.io",
    r"proxy\.go" + r"lang\.org",
    r"--(?:extra-)?index" + r"-url",
]


def code_files(root: Path, *folders: str) -> Iterator[Path]:
    """Yield the Python files below the folders, in order."""
    for folder in folders or CODE_FOLDERS:
        yield from sorted(p for p in (root / folder).rglob("*.py") if "__pycache__" not in p.parts)


def text_files(root: Path) -> Iterator[Path]:
    """Yield every file of the project that holds text."""
    yield from sorted(p for p in root.iterdir() if p.is_file() and p.name != ".coverage")
    for folder in TEXT_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in NO_TEXT:
                yield path


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def imports_at_the_top(root: Path) -> list[str]:
    """No import inside a function: what a module needs stands at its head."""
    return [
        f"{path}:{node.lineno}: import inside {function.name}()"
        for path in code_files(root, "src", "scripts", "benchmarks")
        for function in _functions(_tree(path))
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def to_dos_with_a_reason(root: Path) -> list[str]:
    """A note on work left over says why it is left."""
    return [
        f"{path}:{number}: say why this is left: {line.strip()}"
        for path in code_files(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := TO_DO.search(line)) and len(found["rest"].split()) < 4
    ]


def modules_open_with_a_sentence(root: Path) -> list[str]:
    """Each module's docstring opens with one sentence: what it owns, what it never does."""
    complaints: list[str] = []
    for path in code_files(root, "src", "scripts", "benchmarks"):
        first = (ast.get_docstring(_tree(path)) or "").partition("\n\n")[0]
        if len(first.split()) < 4 or not first.rstrip().endswith("."):
            complaints.append(f"{path}:1: the module does not open with a sentence")
    return complaints


def short_files(root: Path) -> list[str]:
    """No file is longer than one reads in a sitting."""
    lengths = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in code_files(root))
    return [f"{path}: {lines} lines, at most {FILE_LINES_MAX}" for path, lines in lengths if lines > FILE_LINES_MAX]


def short_functions(root: Path) -> list[str]:
    """No function is longer than a screen."""
    return [
        f"{path}:{function.lineno}: {function.name}() has {_length(function)} lines, at most {FUNCTION_LINES_MAX}"
        for path in code_files(root)
        for function in _functions(_tree(path))
        if _length(function) > FUNCTION_LINES_MAX
    ]


def small_functions_mostly(root: Path) -> list[str]:
    """The median function of the package is small."""
    lengths = [_length(f) for path in code_files(root, "src") for f in _functions(_tree(path))]
    median = statistics.median(lengths)
    if median <= FUNCTION_LINES_MEDIAN_MAX:
        return []
    return [f"the median function has {median} lines, at most {FUNCTION_LINES_MEDIAN_MAX}"]


def telling_module_names(root: Path) -> list[str]:
    """A module's name says what it owns."""
    return [
        f"{path}: a module named {part} owns nothing in particular"
        for path in code_files(root, "src")
        for part in path.relative_to(root).with_suffix("").parts
        if part.strip("_") in BANNED_NAMES
    ]


def silencers_with_a_reason(root: Path) -> list[str]:
    """Who silences a guard names the rule and says why, on the same line or in a comment right above."""
    complaints: list[str] = []
    for path in code_files(root):
        comments = dict(_comments(path))
        for number, comment in comments.items():
            found = SILENCER.search(comment)
            if found is None:
                continue
            above = comments.get(number - 1, "")
            explained = len(found["reason"].split()) >= 3 or len(above.split()) >= 4
            named = found["codes"] or "pragma" in comment
            if not (explained and named):
                complaints.append(f"{path}:{number}: silenced without a rule and a reason: {comment}")
    return complaints


def no_places(root: Path) -> list[str]:
    """No file names a path of somebody's machine or the host of a package registry."""
    places = re.compile("|".join(PLACES))
    return [
        f"{path}:{number}: names a place: {found[0]}"
        for path in text_files(root)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (found := places.search(line))
    ]


def core_needs_only_msgspec(root: Path) -> list[str]:
    """The core imports itself, the standard library and msgspec (decision 0009)."""
    allowed = sys.stdlib_module_names | {"msgspec"}
    return [
        f"{path}:{getattr(node, 'lineno', 0)}: core imports {name}"
        for path in code_files(root, "src/retinue/core")
        for node in ast.walk(_tree(path))
        for name in _imported(node)
        if name.partition(".")[0] not in allowed and not name.startswith("retinue.core")
    ]


def nobody_imports_the_front(root: Path) -> list[str]:
    """Inside the package nobody imports from `retinue` itself: that would pass by the layers."""
    return [
        f"{path}:{getattr(node, 'lineno', 0)}: imports the package's front instead of the module that owns the name"
        for path in code_files(root, "src")
        for node in ast.walk(_tree(path))
        if "retinue" in _imported(node) and not _takes_modules(root, node)
    ]


def _takes_modules(root: Path, node: ast.AST) -> bool:
    package = root / "src" / "retinue"
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
    return bool(names) and all((package / name).is_dir() or (package / f"{name}.py").is_file() for name in names)


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        imports_at_the_top,
        to_dos_with_a_reason,
        modules_open_with_a_sentence,
        short_files,
        short_functions,
        small_functions_mostly,
        telling_module_names,
        silencers_with_a_reason,
        no_places,
        core_needs_only_msgspec,
        nobody_imports_the_front,
    )
}
