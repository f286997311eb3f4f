"""The layout's rules: who may import what, the one home of each kind of code, and what the README promises (design
§2, §3, §6, §8; failure test 35)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.settings import SETTINGS
from web.errors import KINDS

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("web", "scorer", "shared")
MODULES = sorted(path.relative_to(ROOT).as_posix() for tier in TIERS for path in (ROOT / tier).rglob("*.py"))
#: The file of a (tiny) checkpoint, not of the project: it is copied and executed, never imported, and keeps to the form
#: of the real one.
CHECKPOINT_FILE = "scorer/engines/intern_tiny/inference.py"
OURS = [module for module in MODULES if module != CHECKPOINT_FILE]


def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), module)


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Everything a module imports, wherever the statement stands: full dotted names and line numbers."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            yield str(node.module), node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute chain, or ""."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def found(rule: Callable[[str], Iterator[tuple[str, int]]], modules: list[str]) -> list[str]:
    return [f"{module}:{line}: {what}" for module in modules for what, line in rule(module)]


def test_there_are_modules_to_check() -> None:
    assert {module.split("/")[0] for module in MODULES} == set(TIERS)
    assert len(MODULES) > 30
    assert CHECKPOINT_FILE in MODULES


# -- who may import what ---

ENGINE_LIBRARIES = {
    "torch",
    "transformers",
    "numpy",
    "sparrow_decider",
    "safetensors",
    "sklearn",
    "fla",
    "causal_conv1d",
}
HTTP_LIBRARIES = {"flask", "werkzeug", "marshmallow", "gunicorn", "prometheus_client"}
FORBIDDEN = {
    "web": {"scorer", "tests"} | ENGINE_LIBRARIES,
    "scorer": {"web", "tests"} | HTTP_LIBRARIES,
    "shared": {"web", "scorer", "tests", "zmq", "backports"} | ENGINE_LIBRARIES | HTTP_LIBRARIES,
}


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_imports_nothing_that_is_the_other_tiers(tier: str) -> None:
    def rule(module: str) -> Iterator[tuple[str, int]]:
        return ((name, line) for name, line in imports(module) if name.split(".")[0] in FORBIDDEN[tier])

    assert found(rule, [module for module in MODULES if module.startswith(f"{tier}/")]) == []


def test_shared_stands_on_the_standard_library_and_one_parser() -> None:
    def rule(module: str) -> Iterator[tuple[str, int]]:
        return (
            (name, line)
            for name, line in imports(module)
            if name.split(".")[0] not in sys.stdlib_module_names | {"shared", "msgspec"}
        )

    # That jsonio alone has msgspec is test_json_is_parsed_and_written_in_one_module's.
    assert found(rule, [module for module in MODULES if module.startswith("shared/")]) == []


def test_zmq_is_imported_by_the_two_ends_of_its_sockets_alone() -> None:
    users = {module for module in MODULES for name, _ in imports(module) if name.split(".")[0] == "zmq"}
    assert users == {"web/connection.py", "web/scorer_client.py", "scorer/broker.py", "scorer/worker.py"}


def modules_after_importing(name: str) -> set[str]:
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {name}, sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {module.split(".")[0] for module in answer.stdout.split()}


def test_importing_the_web_application_loads_no_engine_library_and_nothing_of_the_scorer() -> None:
    loaded = modules_after_importing("web.app")
    assert "flask" in loaded
    assert loaded & FORBIDDEN["web"] == set()


@pytest.mark.parametrize("name", ["scorer.__main__", "scorer.engines.fake"])
def test_importing_the_scorer_loads_nothing_of_http_and_no_engine_library(name: str) -> None:
    loaded = modules_after_importing(name)
    assert "scorer" in loaded
    assert loaded & (FORBIDDEN["scorer"] | ENGINE_LIBRARIES) == set()


@pytest.mark.parametrize(
    "name",
    [module[:-3].replace("/", ".") for module in MODULES if module.startswith("shared/") and "__init__" not in module],
)
def test_importing_a_shared_module_loads_nothing_of_either_tier(name: str) -> None:
    assert modules_after_importing(name) & FORBIDDEN["shared"] == set()


# -- one home each ---


def test_the_environment_is_read_by_the_settings_alone() -> None:
    """An engine may set variables for the libraries that it loads (INV-5: the offline switches); reading is the
    settings' alone. What systemd tells a process that it starts is no setting: the notifier reads that, and no more."""

    def rule(module: str) -> Iterator[tuple[str, int]]:
        writes = {id(node) for statement in ast.walk(tree_of[module]) for node in written(statement)}
        for node in ast.walk(tree_of[module]):
            name = dotted(node)
            if (
                name in ("os.environ", "os.environb") and not (id(node) in writes and module.startswith("scorer/"))
            ) or name in ("os.getenv", "os.getenvb", "os.putenv"):
                yield name, getattr(node, "lineno", 0)
        yield from ((name, line) for name, line in imports(module) if name in ("os.environ", "os.getenv"))

    tree_of = {module: tree(module) for module in MODULES}
    assert found(rule, [m for m in MODULES if m not in ("shared/settings.py", "scorer/notify.py")]) == []
    named = {
        node.value
        for node in ast.walk(tree_of["scorer/notify.py"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[A-Z_]{4,}", node.value)
    }
    assert named == {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}


def written(statement: ast.AST) -> Iterator[ast.AST]:
    """The ``os.environ`` nodes through which a statement only writes."""
    if isinstance(statement, ast.Assign):
        yield from (target.value for target in statement.targets if isinstance(target, ast.Subscript))
    elif (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    ) and statement.value.func.attr in ("setdefault", "update"):
        yield statement.value.func.value


def test_json_is_parsed_and_written_in_one_module() -> None:
    def rule(module: str) -> Iterator[tuple[str, int]]:
        return (
            (name, line)
            for name, line in imports(module)
            if name.split(".")[0] in ("json", "simplejson", "orjson", "ujson", "msgspec")
        )

    assert found(rule, [module for module in OURS if module != "shared/jsonio.py"]) == []

    def flask_json(module: str) -> Iterator[tuple[str, int]]:
        for node in ast.walk(tree(module)):
            if isinstance(node, (ast.Attribute, ast.Name)) and dotted(node).split(".")[-1] in ("jsonify", "get_json"):
                yield dotted(node), node.lineno

    assert found(flask_json, OURS) == []


CODE_LOADERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}


def test_nothing_that_comes_over_a_wire_is_ever_executed() -> None:
    def rule(module: str) -> Iterator[tuple[str, int]]:
        yield from ((name, line) for name, line in imports(module) if name.split(".")[0] in CODE_LOADERS)
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Attribute) and node.attr in ("recv_pyobj", "send_pyobj", "recv_serialized"):
                yield node.attr, node.lineno
            elif isinstance(node, ast.Name) and node.id in EVALUATORS:
                yield node.id, node.lineno

    assert found(rule, [module for module in MODULES if module != "scorer/engines/intern_checkpoint.py"]) == []


def test_the_pinned_checkpoint_is_executed_from_the_bytes_that_were_hashed_and_nothing_else_is() -> None:
    used = [
        node.id
        for node in ast.walk(tree("scorer/engines/intern_checkpoint.py"))
        if isinstance(node, ast.Name) and node.id in EVALUATORS
    ]
    assert sorted(used) == ["compile", "exec"]


#: Numbers in this range that are no HTTP status.
NOT_A_STATUS = {("web/schemas/systemone.py", 400), ("web/schemas/decisions.py", 400)}  # questions a request
#: What the framework's exception has when it has no code of its own.
STATUS_ELSEWHERE = {("web/app.py", 500)}


def test_error_statuses_stand_in_the_table_of_errors_alone() -> None:
    def rule(module: str) -> Iterator[tuple[str, int]]:
        for node in ast.walk(tree(module)):
            value = node.value if isinstance(node, ast.Constant) else None
            if type(value) is int and 400 <= value <= 599 and (module, value) not in NOT_A_STATUS | STATUS_ELSEWHERE:
                yield str(value), node.lineno

    assert found(rule, [module for module in MODULES if module.startswith("web/") and module != "web/errors.py"]) == []


@pytest.mark.parametrize(
    "module",
    [
        "web/plan.py",
        "web/assemble.py",
        "web/decisions.py",
        "web/jev.py",
        "web/errors.py",
        "web/openapi/__init__.py",
        "web/openapi/answers.py",
        "web/openapi/operations.py",
        "web/schemas/described.py",
        "scorer/recovery.py",
        "scorer/engines/questions.py",
    ],
)
def test_a_pure_module_does_no_io(module: str) -> None:
    banned = {"os", "io", "socket", "time", "logging", "pathlib", "threading", "subprocess", "random", "flask", "zmq"}
    assert [f"{module}:{line}: {name}" for name, line in imports(module) if name.split(".")[0] in banned] == []
    assert "open" not in {node.id for node in ast.walk(tree(module)) if isinstance(node, ast.Name)}


def test_nothing_is_printed_but_what_a_start_or_a_command_says() -> None:
    def rule(module: str) -> Iterator[tuple[str, int]]:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Name) and node.id == "print":
                yield "print", node.lineno

    builders = ("scorer/engines/intern_tiny/build.py", "scorer/engines/labels_tiny/build.py")
    allowed = (*builders, "scorer/bench/")
    assert found(rule, [module for module in MODULES if not module.startswith(allowed)]) == []


# -- form ---


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_short_and_says_what_it_is_for(module: str) -> None:
    text = (ROOT / module).read_text(encoding="utf-8")
    assert text.count("\n") < 310, "past about 300 lines a module has two jobs"
    assert ast.get_docstring(ast.parse(text)), "no docstring"


def top_level_names(module: str) -> set[str]:
    names: set[str] = set()
    for node in tree(module).body:
        for inner in ast.walk(node) if isinstance(node, (ast.If, ast.Try)) else [node]:
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(inner.name)
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in inner.names}
            elif isinstance(inner, (ast.Assign, ast.AnnAssign)):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                names |= {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return names


def exported(module: str) -> list[str] | None:
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and [dotted(target) for target in node.targets] == ["__all__"]:
            value = ast.literal_eval(node.value)
            assert all(isinstance(name, str) for name in value)
            return list(value)
    return None


@pytest.mark.parametrize("module", OURS)
def test_every_exported_name_exists_once_and_every_module_with_public_code_has_a_list(module: str) -> None:
    names = exported(module)
    public = {
        node.name
        for node in tree(module).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }
    if names is None:
        assert not public, f"{sorted(public)} without __all__"
        return
    assert set(names) <= top_level_names(module), "a name that the module does not have"
    assert len(set(names)) == len(names)


# -- what the README promises ---


def readme() -> str:
    path = ROOT / "README.md"
    assert path.is_file(), "README.md is missing: the setting and error tables have to be there"
    return path.read_text(encoding="utf-8")


def table_after(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading, cells stripped, without its head."""
    text = readme()
    assert heading in text, f"README.md has no section {heading!r}"
    lines = iter(text.split(heading, 1)[1].splitlines())
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
        elif rows:
            break
    assert len(rows) > 2, f"README.md has no table in {heading!r}"
    return [[cell.strip("| ") for cell in row] for row in rows[2:]]


def test_the_readmes_table_of_settings_is_the_settings() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table_after("## Settings\n")}
    expected = {
        setting.name: [
            "unset" if setting.default is None else f"`{setting.default}`",
            ", ".join(setting.tiers),
            setting.help,
        ]
        for setting in SETTINGS
    }
    assert rows == expected
    assert list(rows) == list(expected)


def test_every_error_is_in_the_readme_with_its_status() -> None:
    rows = {(int(row[0]), row[1].strip("`")) for row in table_after("## Errors\n")}
    assert rows == {(kind.status, kind.code) for kind in KINDS.values()}
    assert [name for name, kind in KINDS.items() if kind.code != name] == []


def test_the_readme_has_no_placeholder_left() -> None:
    assert re.findall(r"@@\w+@@|\bTODO\b|\bFIXME\b|\bXXX\b", readme()) == []


def project_files() -> list[str]:
    """Files that are, or are about to be, under version control."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository here")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


#: Put together here, so that this file is none of its own findings.
BUILD_MACHINE = re.compile(
    "|".join(
        f"/{part}" for part in ("work/" + r"\w", "home/" + r"\w", "root/" + r"[\w.]", "Users/" + r"\w", "opt/" + "pypi")
    )
)


def test_no_path_of_a_build_machine_is_in_the_project() -> None:
    hits = []
    for name in project_files():
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        hits += [
            f"{name}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if BUILD_MACHINE.search(line)
        ]
    assert hits == []


def test_no_bytecode_log_or_secret_is_in_the_project() -> None:
    bad = re.compile(r"(^|/)(__pycache__|run|\.venv)/|\.(pyc|log|sock|pem|key)$|(^|/)(token|\.env)$")
    assert [name for name in project_files() if bad.search(name)] == []
